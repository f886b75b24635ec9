"""Sharded weights of one shape, exchanged so that each rank holds some of them whole, and sent back.

A rank that holds one shard of each of eight weights gives seven of them away and gets the other shards of the eighth.
That is all that an optimizer of whole matrices needs, and 1/ranks of what gathering every weight on every rank moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Division:
    """A dimension of a weight, divided over the ranks of one dimension of the mesh.

    Attributes:
        group: the processes that hold the pieces.
        rank: of this process in the group.
        dim: of the weight.
        lengths: of each rank's piece along it; uneven, or 0, as `torch.chunk` divides.
    """

    group: Any
    rank: int
    dim: int
    lengths: tuple[int, ...]


def chunk_lengths(length: int, ranks: int) -> tuple[int, ...]:
    """How `torch.chunk`, and so DTensor, divides a length over ranks: all are equal but the last ones."""
    piece = -(-length // ranks)
    return tuple(max(0, min(piece, length - rank * piece)) for rank in range(ranks))


def divisions_of(parameter: Tensor) -> list[Division]:
    """How a sharded weight is divided, in the order in which that was done.

    Dimensions of the mesh that only replicate the weight divide nothing: replicas work each for themselves.

    Args:
        parameter: a DTensor, as FSDP2 and tensor parallelism make it.

    Raises:
        ValueError: a layout that is not divided dimension by dimension: partial sums, or strides that are not FSDP2's
            around tensor parallelism.
    """
    tensor = cast(Any, parameter)
    mesh, placements = tensor.device_mesh, tensor.placements
    # FSDP2 divides what tensor parallelism left to a rank, though its dimension of the mesh comes first; torch writes
    # that with a stride over the pieces there were before.
    strided = [at for at, placement in enumerate(placements) if getattr(placement, "split_factor", None)]
    plain = [at for at, placement in enumerate(placements) if hasattr(placement, "dim") and at not in strided]
    shape, divisions = list(parameter.shape), []
    for at in plain + strided:
        if mesh.size(at) == 1:
            continue
        dim = placements[at].dim
        lengths, rank = chunk_lengths(shape[dim], mesh.size(at)), mesh.get_local_rank(at)
        divisions.append(Division(mesh.get_group(at), rank, dim, lengths))
        shape[dim] = lengths[rank]
    is_known = all(hasattr(placement, "dim") or placement.is_replicate() for placement in placements)
    if not is_known or len(strided) > 1 or shape != list(tensor.to_local().shape):
        raise ValueError(
            f"a parameter of shape {tuple(parameter.shape)} is sharded as {placements}: shard it with fully_shard or "
            "parallelize_module, or give it to another optimizer"
        )
    return divisions


def local_part(tensor: Tensor, divisions: list[Division]) -> Tensor:
    """The part of a whole tensor, the same on every rank, that belongs to this rank's shard: a view."""
    for division in divisions:
        tensor = tensor.split(division.lengths, division.dim)[division.rank]
    return tensor


def to_owners(shards: Tensor, divisions: list[Division]) -> Tensor:
    """Give each rank some of the weights whole.

    Args:
        shards: this rank's shards of all weights (count, *shard), contiguous.
        divisions: of the weights.

    Returns:
        Those of this rank (owned, *weight): with `ranks` ranks in each group, in order, at most ceil(count / ranks).
    """
    for division in reversed(divisions):
        counts = chunk_lengths(len(shards), len(division.lengths))
        shapes = []  # of what comes from each rank
        for length in division.lengths:
            shape = [counts[division.rank], *shards.shape[1:]]
            shape[division.dim + 1] = length
            shapes.append(shape)
        pieces = _exchange(list(shards.split(counts)), shapes, division.group)
        shards = torch.cat(pieces, division.dim + 1)
    return shards


def to_shards(weights: Tensor, count: int, divisions: list[Division]) -> Tensor:
    """Undo `to_owners`: this rank's shards (count, *shard) of all weights, where it holds (owned, *weight) whole."""
    totals = [count]  # of the weights that came into each exchange of `to_owners`, the last division's first
    for division in reversed(divisions):
        totals.append(chunk_lengths(totals[-1], len(division.lengths))[division.rank])
    for division, total in zip(divisions, reversed(totals[:-1]), strict=True):
        pieces = weights.split(division.lengths, division.dim + 1)
        counts = chunk_lengths(total, len(division.lengths))
        shape = pieces[division.rank].shape[1:]
        weights = torch.cat(_exchange(list(pieces), [[n, *shape] for n in counts], division.group))
    return weights


def _exchange(pieces: list[Tensor], shapes: list[list[int]], group: Any) -> list[Tensor]:
    """Send a piece to each rank of a group, and receive one of the given shape from each."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    sent = torch.cat([piece.flatten() for piece in pieces])
    received = sent.new_empty(sum(sizes))
    dist.all_to_all_single(received, sent, sizes, [piece.numel() for piece in pieces], group=group)
    return [flat.view(shape) for flat, shape in zip(received.split(sizes), shapes, strict=True)]
