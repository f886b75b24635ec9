"""Which tensors share numbers in memory: views of one buffer, expanded tensors, windows that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fire_core.weights import distributed


def overlapping(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of names whose tensors share at least one number; one tensor under two names is no pair.

    Args:
        named: (name, tensor) pairs. Of a sharded tensor the shard of this process is compared. Tensors whose memory is
            not known (on the meta device, packed) are left out.
    """
    by_storage: dict[int, list[tuple[str, Tensor, int, int]]] = {}
    visited: set[int] = set()
    for name, tensor in named:
        extent = _extent(distributed.local(tensor))
        if extent is not None and id(tensor) not in visited:
            visited.add(id(tensor))
            storage, start, stop = extent
            by_storage.setdefault(storage, []).append((name, distributed.local(tensor), start, stop))
    # In the order of their starts, a tensor is compared only with those before it that end behind its start.
    for members in by_storage.values():
        members.sort(key=lambda member: member[2])
        reaching: list[tuple[str, Tensor, int, int]] = []
        for member in members:
            name, tensor, start, _ = member
            reaching = [other for other in reaching if other[3] > start]
            for other_name, other_tensor, _, _ in reaching:
                if share_numbers(other_tensor, tensor):
                    yield other_name, name
            reaching.append(member)


def share_numbers(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors share at least one byte of memory; False if their memory is not known."""
    extent, other_extent = _extent(first), _extent(second)
    if extent is None or other_extent is None:
        return False
    storage, start, stop = extent
    other_storage, other_start, other_stop = other_extent
    if storage != other_storage or max(start, other_start) >= min(stop, other_stop):
        return False
    if first.is_contiguous() and second.is_contiguous():
        return True
    begin = min(start, other_start)
    touched = torch.zeros(max(stop, other_stop) - begin, dtype=torch.bool, device="cpu")  # by the first, byte for byte
    _bytes_of(touched, first, start - begin).fill_(True)
    return bool(_bytes_of(touched, second, other_start - begin).any())


def overlaps_itself(tensor: Tensor) -> bool:
    """Return whether two places of a tensor are one number in memory, as in an expanded tensor or sliding windows."""
    extent = _extent(tensor)
    if extent is None:
        return False
    steps = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0  # the largest position that the dimensions so far can reach
    nested = True
    for step, size in steps:
        nested &= step > reach
        reach += step * (size - 1)
    if nested:
        return False
    if reach + 1 < tensor.numel():
        return True
    counts = torch.zeros(reach + 1, dtype=torch.bool, device="cpu")
    counts.as_strided(tensor.shape, tensor.stride()).fill_(True)
    return int(counts.sum()) < tensor.numel()


def _extent(tensor: Tensor) -> tuple[int, int, int] | None:
    """Return (address of a tensor's storage, start, stop), the last two in bytes within it; None if not known."""
    try:
        if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
            return None
        storage = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    if storage == 0:
        return None
    last: int = sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return storage, start, start + (last + 1) * tensor.element_size()


def _bytes_of(touched: Tensor, tensor: Tensor, start: int) -> Tensor:
    """Return the view of `touched` that has the bytes of a tensor, of shape (*tensor.shape, bytes of a number).

    Args:
        touched: a flag for each byte of a piece of memory.
        tensor: a tensor in that memory.
        start: the index in `touched` of the tensor's first byte.
    """
    size = tensor.element_size()
    strides = [step * size for step in tensor.stride()]
    return touched.as_strided((*tensor.shape, size), (*strides, 1), start)
