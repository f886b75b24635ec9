"""The work of a projection divided over processes: DistributedDataParallel replicas and sharded weights.

A weight that is spread over ranks (FSDP2's DTensor) is gathered whole, because a polar factor needs the whole matrix;
of the gathered matrices each rank projects every `size`-th, and the results are added up from zeros, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class ProjectionGroup:
    """The processes that project a batch together; `processes` None means this process alone."""

    processes: Any = None
    rank: int = 0
    size: int = 1

    def mine(self, count: int, first: int, device: torch.device) -> Tensor:
        """Which of `count` matrices this process projects, when `first` matrices were given out before these."""
        return torch.arange(min((self.rank - first) % self.size, count), count, self.size, device=device)

    def gather(self, part: Tensor, mine: Tensor, count: int) -> Tensor:
        """All processes' parts put together: (len(mine), ...) -> (count, ...), the same on every rank."""
        if self.processes is None:
            return part
        whole = torch.zeros(count, *part.shape[1:], dtype=part.dtype, device=part.device)
        whole[mine] = part
        dist.all_reduce(whole, group=self.processes)
        return whole


def ddp_group(model: nn.Module) -> Any:
    """The process group of a DistributedDataParallel model, also inside `torch.compile`; None for others."""
    model = getattr(model, "_orig_mod", model)
    return model.process_group if isinstance(model, nn.parallel.DistributedDataParallel) else None


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor (asked without importing the distributed tensor package)."""
    return hasattr(tensor, "device_mesh")


def projection_group(parameter: Tensor, group: Any) -> ProjectionGroup:
    """The processes that share a parameter's matrices: those of its innermost mesh dimension, else of `group`."""
    if is_sharded(parameter):
        mesh = cast(Any, parameter).device_mesh
        group = mesh.get_group(mesh.ndim - 1)
    if group is None or dist.get_world_size(group) == 1:
        return ProjectionGroup()
    return ProjectionGroup(group, dist.get_rank(group), dist.get_world_size(group))


def full(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered if it is sharded."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this process holds of it."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def write_(parameter: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into a parameter; every rank keeps its shard."""
    if is_sharded(parameter) and not is_sharded(value):
        from torch.distributed.tensor import distribute_tensor

        target = cast(Any, parameter)
        value = value.to(device=local(parameter).device, dtype=parameter.dtype)
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    parameter.copy_(value)


def all_true(flags: Tensor, parameters: list[Tensor]) -> Tensor:
    """Logical and of the flags over the ranks that hold shards of the parameters."""
    meshes = {id(mesh): mesh for p in parameters if is_sharded(p) for mesh in [cast(Any, p).device_mesh]}
    for mesh in meshes.values():
        for dimension in range(mesh.ndim):
            dist.all_reduce(flags, op=dist.ReduceOp.MIN, group=mesh.get_group(dimension))
    return flags


def mean_over_ranks(value: Tensor) -> float:
    """A scalar averaged over all processes, the same in each; all of them must call this. Waits for the device."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        if "gloo" not in dist.get_backend():  # NCCL takes only what lies on its device
            value = value.to(torch.accelerator.current_accelerator())
        value = value.detach().double() / dist.get_world_size()
        dist.all_reduce(value)
    return float(value)
