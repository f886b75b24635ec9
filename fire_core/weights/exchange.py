"""Sharded weights of one shape, exchanged so that each rank holds some of them whole; and the exchange back.

For example, each of eight ranks holds one shard of each of eight weights. It sends seven shards away and receives the
seven missing shards of one weight. An optimizer that updates whole matrices needs no more, and this moves 1/ranks of
the data that gathering every weight on every rank would move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Division:
    """How one dimension of a weight is divided over the ranks of one dimension of the device mesh.

    Attributes:
        group: the process group of the ranks that hold the pieces.
        rank: rank of this process in the group.
        dim: the dimension of the weight that is divided.
        lengths: length of each rank's piece along `dim`. As with `torch.chunk`, the last ones may be shorter, or 0.
    """

    group: Any
    rank: int
    dim: int
    lengths: tuple[int, ...]


def chunk_lengths(length: int, ranks: int) -> tuple[int, ...]:
    """Return the length of each rank's piece as `torch.chunk`, and so DTensor, divides: equal but for the last ones."""
    piece = -(-length // ranks)
    return tuple(max(0, min(piece, length - rank * piece)) for rank in range(ranks))


def divisions_of(parameter: Tensor) -> list[Division]:
    """Return the divisions of a sharded weight, in the order in which they were made.

    Dimensions of the mesh that only replicate the weight are left out, because each replica works for itself.

    Args:
        parameter: a DTensor, as FSDP2 and tensor parallelism make it.

    Raises:
        ValueError: the placements do not divide the weight dimension by dimension: partial sums, or strided shards
            other than those of FSDP2 around tensor parallelism.
    """
    tensor = cast(Any, parameter)
    mesh, placements = tensor.device_mesh, tensor.placements
    # FSDP2 divides what tensor parallelism has left to a rank, although FSDP2's dimension of the mesh comes first.
    # Torch marks this order with a `split_factor`.
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
    """Return this rank's part of a whole tensor, as a view.

    Args:
        tensor: a tensor with the (global) shape of the divided weight.
        divisions: how the weight is divided.
    """
    for division in divisions:
        tensor = tensor.split(division.lengths, division.dim)[division.rank]
    return tensor


def to_owners(shards: Tensor, divisions: list[Division]) -> Tensor:
    """Exchange shards so that each rank gets some of the weights whole. All ranks must call this.

    Args:
        shards: this rank's shards of all weights, (count, *shape of a shard), contiguous.
        divisions: how each of the weights is divided.

    Returns:
        The weights of this rank, (owned, *shape of a weight), where owned is at most ceil(count / ranks). The ranks own
        consecutive runs of the weights, in the order of the ranks.
    """
    for division in reversed(divisions):
        counts = chunk_lengths(len(shards), len(division.lengths))
        shapes = []  # of the piece that each rank sends to this one
        for length in division.lengths:
            shape = [counts[division.rank], *shards.shape[1:]]
            shape[division.dim + 1] = length
            shapes.append(shape)
        # In one expression, so that no name keeps the received pieces alive during the next exchange.
        shards = torch.cat(_exchange(list(shards.split(counts)), shapes, division.group), division.dim + 1)
    return shards


def to_shards(weights: Tensor, count: int, divisions: list[Division]) -> Tensor:
    """Exchange weights back, the reverse of `to_owners`. All ranks must call this.

    Args:
        weights: the weights of this rank, (owned, *shape of a weight).
        count: number of all weights.
        divisions: how each of the weights is divided.

    Returns:
        This rank's shards of all weights, (count, *shape of a shard).
    """
    totals = [count]  # number of weights at the start of each exchange in `to_owners`, in the order of the exchanges
    for division in reversed(divisions):
        totals.append(chunk_lengths(totals[-1], len(division.lengths))[division.rank])
    for division, total in zip(divisions, reversed(totals[:-1]), strict=True):
        pieces = weights.split(division.lengths, division.dim + 1)
        counts = chunk_lengths(total, len(division.lengths))
        shape = pieces[division.rank].shape[1:]
        weights = torch.cat(_exchange(list(pieces), [[n, *shape] for n in counts], division.group))
    return weights


def _exchange(pieces: list[Tensor], shapes: list[list[int]], group: Any) -> list[Tensor]:
    """Send a piece to each rank of a group and receive one from each.

    Args:
        pieces: the pieces to send, in the order of the ranks.
        shapes: shape of the piece that comes from each rank.
        group: the process group.

    Returns:
        The received pieces in the order of the ranks.
    """
    sizes = [torch.Size(shape).numel() for shape in shapes]
    sent = torch.cat([piece.flatten() for piece in pieces])
    received = sent.new_empty(sum(sizes))
    dist.all_to_all_single(received, sent, sizes, [piece.numel() for piece in pieces], group=group)
    return [flat.view(shape) for flat, shape in zip(received.split(sizes), shapes, strict=True)]
