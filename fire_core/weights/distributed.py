"""A projection divided over processes: replicas of DistributedDataParallel, and sharded weights.

A weight that is sharded over ranks (FSDP2's DTensor) is gathered first, because a polar factor needs the whole matrix.
Each rank then projects every `size`-th of the gathered matrices. The results are summed over the ranks, each of which
has zeros for the matrices of the others, so the sum is exact.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

CHUNK = 2**20  # numbers whose bits are summed at once


@dataclass(frozen=True)
class ProjectionGroup:
    """The processes that project a batch of matrices together.

    Attributes:
        processes: the process group of `torch.distributed`; None: this process alone.
        rank: rank of this process in the group.
        size: number of processes.
    """

    processes: Any = None
    rank: int = 0
    size: int = 1

    def own_indices(self, count: int, first: int, device: torch.device) -> Tensor:
        """Return the indices of the matrices that this process projects.

        Args:
            count: number of matrices to divide over the processes.
            first: number of matrices that were divided before these, so that the processes take turns.
            device: device of the result.

        Returns:
            Integers in [0, count), of shape (about count / size,).
        """
        return torch.arange(min((self.rank - first) % self.size, count), count, self.size, device=device)

    def gather(self, part: Tensor, indices: Tensor, count: int) -> Tensor:
        """Return the results of all processes, the same on every rank. All processes must call this.

        Args:
            part: the results of this process, (len(indices), ...).
            indices: what `own_indices` returned.
            count: number of matrices of all processes.

        Returns:
            (count, ...), in the order of the matrices.
        """
        if self.processes is None:
            return part
        gathered = torch.zeros(count, *part.shape[1:], dtype=part.dtype, device=part.device)
        gathered[indices] = part
        dist.all_reduce(gathered, group=self.processes)
        return gathered


def ddp_group(model: nn.Module) -> Any:
    """Return the process group of a DistributedDataParallel model, also of a compiled one; None for other models."""
    model = getattr(model, "_orig_mod", model)
    return model.process_group if isinstance(model, nn.parallel.DistributedDataParallel) else None


def ignored_by_ddp(model: nn.Module) -> set[Tensor]:
    """Return the parameters that DistributedDataParallel lets differ between processes, such as local experts."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return set()
    names = model.parameters_to_ignore
    return {p for name, p in model.module.named_parameters(remove_duplicate=False) if name in names}


def is_one_of_many() -> bool:
    """Return whether this process is one of several that `torch.distributed` connects."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def ddp_around(module: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """Return the DistributedDataParallel that wraps a module, which itself does not know it; None if there is none.

    All objects of the process are looked at, which takes about as long as an optimizer step.
    """
    if not is_one_of_many():
        return None
    for candidate in gc.get_objects():
        is_wrapper = issubclass(type(candidate), nn.parallel.DistributedDataParallel) and hasattr(candidate, "module")
        if is_wrapper and any(inner is module for inner in candidate.modules()):
            return cast(nn.parallel.DistributedDataParallel, candidate)
    return None


def differ_over_ranks(tensors: Sequence[Tensor], group: Any) -> list[bool]:
    """Return for each tensor whether its bits differ between processes, told by two sums. All must call this.

    Args:
        tensors: as many on each process, on any devices, not sharded.
        group: the processes.
    """
    if not tensors:
        return []
    device = _device_to_reduce_on(group, tensors[0].device)
    largest = torch.stack([_sums_of_bits(tensor).to(device) for tensor in tensors])
    smallest = largest.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=group)
    return [bool(flag) for flag in (largest != smallest).any(1).tolist()]


def _sums_of_bits(tensor: Tensor) -> Tensor:
    """Return two sums over a tensor's numbers, taken as integers, (2,) int64.

    Sums of integers do not depend on their order, and so neither on the number of threads nor on the device.
    """
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().reshape(-1)
    integers = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for number, chunk in enumerate(integers.split(CHUNK)):  # in chunks, as int64 takes eight bytes a number
        wide = chunk.to(torch.int64)
        odd = torch.arange(len(wide), device=flat.device).add_(number * CHUNK).mul_(2).add_(1)
        sums += torch.stack([wide.sum(), (wide * odd).sum()])  # beyond 2^63 they wrap around
    return sums


def _device_to_reduce_on(group: Any, device: torch.device) -> torch.device:
    """Return the device on which a group reduces tensors that lie on another one: NCCL on the accelerator only."""
    if "gloo" in dist.get_backend(group):
        return device
    return torch.accelerator.current_accelerator() or device


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, without importing torch's package of distributed tensors."""
    return hasattr(tensor, "device_mesh")


def reshard_(model: nn.Module) -> None:
    """Let a model's modules of FSDP2 give up the whole weights that a forward pass has gathered, in place.

    After a forward pass without a backward pass, as in an evaluation, the outermost module keeps its weights whole. Its
    parameters are then temporary plain tensors, and what is written into them is lost with the next pass. Ranks do not
    wait for each other here.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # if nobody has imported it, no module is one of its
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def shard_as(whole: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor, which is equal on all ranks, as a DTensor sharded as another one.

    Args:
        whole: of the global shape of `like`.
        like: if it is not sharded, `whole` itself is returned.
    """
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    target = cast(Any, like)
    return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)


def projection_group(parameter: Tensor, group: Any) -> ProjectionGroup:
    """Return the processes that divide the projection of a parameter.

    Args:
        parameter: if it is a DTensor, these are the processes of the last dimension of its mesh.
        group: the process group of any other parameter; None: this process alone.
    """
    if is_sharded(parameter):
        mesh = cast(Any, parameter).device_mesh
        group = mesh.get_group(mesh.ndim - 1)
    if group is None or dist.get_world_size(group) == 1:
        return ProjectionGroup()
    return ProjectionGroup(group, dist.get_rank(group), dist.get_world_size(group))


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathered from all ranks if it is sharded; all of them must then call this."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return the shard of a tensor that this process holds; a tensor that is not sharded is returned as it is."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def write_(parameter: Tensor, value: Tensor) -> None:
    """Copy a tensor into a parameter of the same (global) shape, in place.

    Args:
        parameter: if it is sharded, each rank copies its own shard.
        value: the whole tensor, equal on all ranks, or a DTensor.
    """
    if is_sharded(parameter) and not is_sharded(value):
        value = shard_as(value.to(device=local(parameter).device, dtype=parameter.dtype), parameter)
    parameter.copy_(value)


def all_true_over_ranks(flags: Tensor, parameters: list[Tensor]) -> Tensor:
    """Return the logical and of flags over all ranks that hold shards of parameters. All of them must call this.

    Args:
        flags: integers 0 or 1 of any shape; overwritten with the result.
        parameters: if none of them is sharded, the flags stay as they are.
    """
    meshes = {}
    for p in parameters:
        if is_sharded(p):
            mesh = cast(Any, p).device_mesh
            meshes[id(mesh)] = mesh
    for mesh in meshes.values():
        for dimension in range(mesh.ndim):
            dist.all_reduce(flags, op=dist.ReduceOp.MIN, group=mesh.get_group(dimension))
    return flags


def true_on_all_ranks(flag: bool, group: Any, device: torch.device) -> bool:
    """Return whether a flag is true on all processes of a group. All of them must call this.

    Args:
        flag: that of this process.
        group: the process group; None: this process alone.
        device: of the model.
    """
    if group is None or dist.get_world_size(group) == 1:
        return flag
    total = torch.tensor(int(flag), dtype=torch.int32, device=_device_to_reduce_on(group, device))
    dist.all_reduce(total, op=dist.ReduceOp.MIN, group=group)
    return bool(total)


def mean_over_ranks(value: Tensor) -> float:
    """Return the mean of a scalar over all processes, the same in each. All of them must call this.

    It waits for the device that computes `value`. Without `torch.distributed` it returns the scalar itself.
    """
    if is_one_of_many():
        if "gloo" not in dist.get_backend():  # NCCL reduces tensors on the accelerator only
            value = value.to(torch.accelerator.current_accelerator())
        value = value.detach().double() / dist.get_world_size()
        dist.all_reduce(value)
    return float(value)


def mean_of_values_over_ranks(total: Tensor, count: int) -> float | None:
    """Return the mean of the values of all processes, the same in each; None without a value. All of them must call it.

    Args:
        total: sum of the values of this process, a scalar.
        count: number of these values, which may be 0.
    """
    if not is_one_of_many():
        return float(total / count) if count else None
    if "gloo" not in dist.get_backend():
        total = total.to(torch.accelerator.current_accelerator())
    sums = torch.stack([total.detach().double(), torch.full_like(total, count, dtype=torch.float64)])
    dist.all_reduce(sums)
    value, values = sums.tolist()
    return value / values if values else None
