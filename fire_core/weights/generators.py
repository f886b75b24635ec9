"""The random generators of a process, restored after code of others has run."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def restored_generators(tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Put back the states of torch's, numpy's and Python's random generators at the end of this block.

    Args:
        tensors: tensors on the CUDA devices whose generators are restored besides that of the CPU.
    """
    python_state = random.getstate()
    numpy = sys.modules.get("numpy.random")  # if it was not imported, nothing has drawn from it
    numpy_state: Any = None if numpy is None else numpy.get_state()
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(list(devices)):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.set_state(numpy_state)
