"""The deterministic fill: the golden data give large networks by a formula instead of by their weights."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 16  # elements; fits into the cache, which makes the fill several times faster


def uniform(stream: int, start: int, stop: int) -> np.ndarray:
    """Numbers `start` to `stop` of a stream in [0, 1) with 24 bits each, by SplitMix64."""
    z = np.arange(start + 1, stop + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(stream * 0xD1B54A32D192ED03 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 2**24


def values(spec: dict[str, Any]) -> Tensor:
    """A float32 tensor of `spec`'s shape, stream, base and amplitude, or of its constant `value`."""
    if "value" in spec:
        return torch.full(spec["shape"], spec["value"])
    flat = np.empty(int(np.prod(spec["shape"], dtype=np.int64)), dtype=np.float32)
    for start in range(0, len(flat), CHUNK):
        stop = min(start + CHUNK, len(flat))
        flat[start:stop] = spec["base"] + spec["amp"] * (2 * uniform(spec["stream"], start, stop) - 1)
    return torch.from_numpy(flat).reshape(spec["shape"])


def integers(spec: dict[str, Any], shape: Iterable[int] | None = None) -> Tensor:
    """An int64 tensor in [0, modulus)."""
    shape = tuple(spec["shape"] if shape is None else shape)
    flat = np.floor(uniform(spec["stream"], 0, int(np.prod(shape))) * spec["modulus"])
    return torch.from_numpy(flat.astype(np.int64)).reshape(shape)


@torch.no_grad()
def fill_(tensors: Iterable[Tensor], specs: list[dict[str, Any]]) -> None:
    """Fill tensors in place, in the golden order, after a check of their number and shapes."""
    tensors = list(tensors)
    assert [list(t.shape) for t in tensors] == [spec["shape"] for spec in specs]
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.copy_(values(spec))
