"""The processes of one run: alone, or those that torchrun started."""

import io
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fire_core.harness.options.config import resolve_device

PATIENCE = timedelta(
    days=7
)  # rank 0 may wait for a first phase that another run trains; torchrun ends us if a rank dies


@dataclass(frozen=True)
class Team:
    """What a process must know of the others.

    Attributes:
        rank: our number.
        size: of us all.
        device: ours.
    """

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Team":
        """Meet the other processes, if torchrun's environment says that there are any.

        Args:
            device: as in `device=`; with several processes, `auto` and `cuda` are each process's own GPU.

        Raises:
            ConfigError: the machine has no such device.
        """
        size = int(os.environ.get("WORLD_SIZE", 1))
        if size == 1:
            return cls(0, 1, resolve_device(device))
        if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        found = resolve_device(device)
        if not dist.is_initialized():
            if found.type == "cuda":
                torch.cuda.set_device(found)
            backend = "cpu:gloo,cuda:nccl" if found.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
        return cls(dist.get_rank(), size, found)

    def share(self, value: Any = None) -> Any:
        """Rank 0's nested state of tensors, numbers and strings, on every rank's own device."""
        if self.size == 1:
            return value
        buffer = io.BytesIO()
        if self.rank == 0:
            torch.save(value, buffer)
        length = torch.tensor(buffer.getbuffer().nbytes)
        dist.broadcast(length, 0)
        data = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0:
            data = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        dist.broadcast(data, 0)
        if self.rank == 0:
            return value
        return torch.load(io.BytesIO(data.numpy().tobytes()), map_location=self.device, weights_only=True)

    def largest(self, *numbers: int) -> list[int]:
        """The largest of each number over the ranks. It goes over the CPU, so that no GPU waits."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return values.tolist()

    def sum_(self, value: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def same_(self, tensors: list[Tensor]) -> None:
        """Rank 0's values on every rank, in place."""
        if self.size > 1:
            with torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)


def leave() -> None:
    """Say goodbye to the other processes, after everything went well."""
    if dist.is_initialized():
        dist.destroy_process_group()
