"""The processes of one run: a single one, or those that torchrun has started."""

import functools
import io
import logging
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from harness.config.config import resolve_device
from harness.config.errors import ConfigError, Diverged
from harness.process.console import LOGGERS
from harness.program.messages import exit_with, user_facing

# Rank 0 may wait for a first phase that another run trains; torchrun ends all processes if one dies.
PATIENCE = timedelta(days=7)


def world_size() -> int:
    """Return the number of processes of the run by torchrun's environment; 1 without torchrun.

    A container or a scheduler may set WORLD_SIZE alone, where nobody has started several processes.

    Raises:
        ConfigError: WORLD_SIZE is no number.
    """
    if not all(os.environ.get(variable) for variable in ("WORLD_SIZE", "RANK", "MASTER_ADDR")):
        return 1
    try:
        return int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise ConfigError(f"WORLD_SIZE in the environment is no number: {os.environ['WORLD_SIZE']!r}") from None


Train = TypeVar("Train", bound=Callable[..., Any])
# An order of rank 0 for a later job of a sweep, which came while this process was still at the one before.
_early_orders: list[dict[str, Any]] = []


@dataclass(frozen=True)
class ProcessGroup:
    """This process's view of the processes of the run.

    Attributes:
        rank: rank of this process.
        size: number of processes.
        device: device of this process.
    """

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "ProcessGroup":
        """Join the process group that torchrun's environment describes, if it does; only rank 0 logs more than errors.

        Args:
            device: as in `device=`; with several processes, `auto` and `cuda` are each process's own GPU.

        Raises:
            ConfigError: the machine has no such device, or the environment does not say which is this process's.
        """
        size = world_size()
        if size == 1:
            return cls(0, 1, resolve_device(device))
        if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
            if "LOCAL_RANK" not in os.environ:
                raise ConfigError(
                    "LOCAL_RANK is not in the environment: several processes on GPUs are started by torchrun"
                )
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        own_device = resolve_device(device)
        if not dist.is_initialized():
            if own_device.type == "cuda":
                torch.cuda.set_device(own_device)
            backend = "cpu:gloo,cuda:nccl" if own_device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
        if dist.get_rank() > 0:
            for name in LOGGERS:
                logging.getLogger(name).setLevel(logging.ERROR)
        return cls(dist.get_rank(), size, own_device)

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value, nested state of tensors, numbers and strings, with tensors on each rank's device."""
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

    def send_order(self, job: str, **order: Any) -> None:
        """On rank 0, tell the others what to do in a job of a sweep; without an order, that the job is done."""
        self.broadcast({"job": job, "order": order})

    def next_order(self, job: str) -> dict[str, Any] | None:
        """On other ranks, return rank 0's next order for a job; None if it is done, or rank 0 has gone on to another.

        Rank 0 sends nothing for a job that fails before it is trained, as when its folder cannot be opened.
        """
        message = _early_orders.pop() if _early_orders else self.broadcast()
        if message["job"] != job:
            _early_orders.append(message)
            return None
        return message["order"] or None

    def maximum(self, *numbers: int) -> list[int]:
        """Return the largest of each number over the ranks. The numbers go over the CPU, so that no GPU waits."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return values.tolist()

    def sum_(self, value: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place, and return it."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def broadcast_(self, tensors: list[Tensor]) -> None:
        """Copy rank 0's tensors to every rank, in place."""
        if self.size > 1:
            with torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)


def exit_if_a_rank_fails(train: Train) -> Train:
    """Decorate a function of a task that all ranks run together: if it fails on one rank, that process exits.

    The others would wait for it for ever, and torchrun ends them when one has exited. `Diverged` is raised on all ranks
    at once, so it is passed on and ends this run alone.
    """

    @functools.wraps(train)
    def function(task: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(task, *args, **kwargs)
        except Diverged:
            raise
        except Exception as error:
            if task.group.size == 1:
                raise
            if not user_facing(error):
                traceback.print_exc()
            exit_with(error)

    return cast(Train, function)


def leave() -> None:
    """Destroy the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
