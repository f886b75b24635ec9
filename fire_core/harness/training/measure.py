"""What a boundary did to a network, and what it cost."""

import time
from typing import Self

import torch
from torch import Tensor

from fire_core.harness.options.errors import TrainingError
from fire_core.methods import Net
from fire_core.metrics import dfi, sfe
from fire_core.weights.distributed import full
from fire_core.weights.layout import resolve


@torch.no_grad()
def total_dfi(net: Net) -> float:
    """Deviation from isometry summed over all weight matrices, each divided by its FIRE scale first.

    A matrix W counts ||W^T W / s^2 - I||_F^2 with s = sqrt(d_out/d_in) / (k_h k_w): 0 after an exact projection.
    Counted over the layout `all`, frozen weights too, whatever the method touches, so that methods can be compared.
    """
    total = torch.zeros((), dtype=torch.float64)
    for module in net.modules.values():
        for entry in resolve(module, "all", trainable_only=False):
            if entry.action == "project":
                d_out, d_in = entry.shape
                scale = (d_out / d_in) ** 0.5 / entry.positions
                total += dfi(entry.view(full(entry.parameter.detach())) / scale).double().sum().cpu()
    return total.item()


@torch.no_grad()
def total_sfe(net: Net, before: dict[str, dict[str, Tensor]]) -> float:
    """Squared Frobenius error summed over the same matrices, against the weights `before` (state dicts by module).

    Matrices that were not there before count nothing.
    """
    total = torch.zeros((), dtype=torch.float64)
    for name, module in net.modules.items():
        for entry in resolve(module, "all", trainable_only=False):
            if entry.action == "project" and entry.name in before[name]:
                old = entry.view(full(before[name][entry.name]))
                total += sfe(entry.view(full(entry.parameter.detach())), old).double().sum().cpu()
    return total.item()


def check_finite(step: int, *values: Tensor) -> None:
    """Stop before a step, a checkpoint or a row is made of nonsense.

    Raises:
        TrainingError: a value is NaN or infinite.
    """
    for value in values:
        if not torch.isfinite(value).all():
            raise TrainingError(
                f"the loss, its gradient or a weight is not finite at step {step}; the last checkpoint is from before. "
                "Lower lr=, or skip such steps with on_nan=skip"
            )


class Stopwatch:
    """Seconds and, on a GPU, additional peak memory of a block of code.

    Attributes:
        seconds: wall-clock time, the device's work included.
        peak_bytes: GPU memory beyond what was allocated before; 0 on a CPU, where torch does not tell.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device if device.type == "cuda" else None
        self.seconds = 0.0
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        if self.cuda is not None:
            torch.cuda.synchronize(self.cuda)
            torch.cuda.reset_peak_memory_stats(self.cuda)
            self._allocated = torch.cuda.memory_allocated(self.cuda)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.cuda is not None:
            torch.cuda.synchronize(self.cuda)
            self.peak_bytes = torch.cuda.max_memory_allocated(self.cuda) - self._allocated
        self.seconds = time.perf_counter() - self._start


class Meter:
    """Adds up the time of many short blocks without making a GPU wait for any of them.

    On a GPU a block's time is that between two events in its stream, which are read together in `take`.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[torch.cuda.Event] = []

    def __enter__(self) -> Self:
        if self.cuda:
            self._mark()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.cuda:
            self._mark()
        else:
            self._seconds += time.perf_counter() - self._start

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)

    def take(self) -> float:
        """The seconds since the last call; on a GPU it waits for the last block."""
        if self._events:
            self._events[-1].synchronize()
            pairs = zip(self._events[::2], self._events[1::2], strict=True)
            self._seconds += sum(start.elapsed_time(end) for start, end in pairs) / 1000
            self._events = []
        seconds, self._seconds = self._seconds, 0.0
        return seconds
