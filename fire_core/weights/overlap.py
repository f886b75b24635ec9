"""Which tensors share numbers in memory: views of one buffer, expanded tensors, windows that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fire_core.weights import distributed


def overlapping(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Pairs of names whose tensors share at least one number; the same tensor under two names is no pair.

    Args:
        named: (name, tensor) pairs; of sharded tensors what this process holds of them. Tensors without memory that
            can be asked for (on the meta device, packed) are passed over.
    """
    by_storage: dict[int, list[tuple[str, Tensor, int, int]]] = {}
    visited: set[int] = set()
    for name, tensor in named:
        extent = _extent(distributed.local(tensor))
        if extent is not None and id(tensor) not in visited:
            visited.add(id(tensor))
            storage, start, stop = extent
            by_storage.setdefault(storage, []).append((name, distributed.local(tensor), start, stop))
    for members in by_storage.values():
        if len(members) < 2:
            continue
        members.sort(key=lambda member: member[2])
        open_members: list[tuple[str, Tensor, int, int]] = []
        for member in members:
            open_members = [other for other in open_members if other[3] > member[2]]
            for other in open_members:
                if share_numbers(other[1], member[1]):
                    yield other[0], member[0]
            open_members.append(member)


def share_numbers(some: Tensor, other: Tensor) -> bool:
    """Whether two tensors share at least one byte of memory."""
    extents = _extent(some), _extent(other)
    if extents[0] is None or extents[1] is None or extents[0][0] != extents[1][0]:
        return False
    start, stop = max(extents[0][1], extents[1][1]), min(extents[0][2], extents[1][2])
    if start >= stop:
        return False
    if some.is_contiguous() and other.is_contiguous():
        return True
    begin, end = min(extents[0][1], extents[1][1]), max(extents[0][2], extents[1][2])
    touched = torch.zeros(end - begin, dtype=torch.bool, device="cpu")
    _bytes_of(touched, some, extents[0][1] - begin).fill_(True)
    return bool(_bytes_of(touched, other, extents[1][1] - begin).any())


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two places of a tensor are one number in memory, as in an expanded tensor or one of sliding windows."""
    extent = _extent(tensor)
    if extent is None:
        return False
    steps = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0  # the farthest of the positions along the dimensions so far
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
    """The address of a tensor's storage, and where in it the tensor begins and ends, in bytes; None if unknown."""
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
    """The places of a tensor's bytes in a map of memory."""
    size = tensor.element_size()
    strides = [step * size for step in tensor.stride()]
    return touched.as_strided((*tensor.shape, size), (*strides, 1), start)
