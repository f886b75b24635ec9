"""The random generators of a process, kept as they are while somebody else's code runs."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def kept_generators(tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Put the generators of torch, numpy and Python back at the end to where they were.

    Args:
        tensors: whose devices' generators are kept beside that of the CPU.
    """
    python, numpy = random.getstate(), sys.modules.get("numpy.random")  # without an import, nothing has drawn from it
    state: Any = None if numpy is None else numpy.get_state()
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(list(devices)):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(state)
