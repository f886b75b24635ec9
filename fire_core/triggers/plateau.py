"""A trigger that follows a loss or score which training computes anyway."""

import math
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from fire_core.methods.protocol import Net
from fire_core.ranges import Count, Decay, checked, one_of
from fire_core.triggers.measured import Steps
from fire_core.triggers.trigger import Firing, Metrics, Trigger
from fire_core.weights.distributed import mean_of_values_over_ranks


class Plateau(Trigger):
    """Fires when the mean of a metric over a window of steps has not improved for `patience` windows.

    A window ends after `every` steps, or at the first value after that. A window improves if its mean is better than
    that of the best window since the last action. After an action the best window is forgotten, and the first complete
    window after `cooldown` steps is the first to count.

    The first mean that is not finite is reported as a RuntimeWarning. Tensors are added up on their device and read
    only at the end of a window.

    Args:
        metric: name of the metric, as the loop gives it to `ask`.
        every: steps of a window.
        patience: windows without improvement after which it fires.
        min_delta: an improvement is more than this share of the best mean.
        mode: min for a loss, max for a score.
        cooldown: steps after an action that do not count.

    Raises:
        ValueError: a number is out of range, or the mode is unknown; later, a value of the metric is no single number.
    """

    name = "plateau"
    FIELDS = ("last", "sum", "count", "due", "best", "waited", "value", "begin")

    @checked
    def __init__(
        self,
        metric: str = "loss",
        every: Count = 100,
        patience: Count = 10,
        min_delta: Decay = 0.01,
        mode: Annotated[str, one_of("min", "max")] = "min",
        cooldown: Steps = 0,
    ) -> None:
        super().__init__()
        self.metric, self.every, self.patience = metric, every, patience
        self.min_delta, self.mode, self.cooldown = min_delta, mode, cooldown
        self.sum: Tensor | float = 0.0  # of the metric's values in the present window
        self.count = 0  # of these values
        self.due = False  # whether the window ends at the next value
        self.best: float | None = None  # mean of the best window since the last action
        self.value: float | None = None  # mean of the last window
        self.waited = 0  # windows since the best one
        self.warned = False  # whether the warning about a mean that is not finite has been given
        self.begin: int | None = None  # the step after which the first window begins

    def __str__(self) -> str:
        return f"Plateau({self.metric!r}, every={self.every}, patience={self.patience})"

    def needs(self) -> set[str]:
        return {self.metric}

    def earliest(self, after: int = 0) -> float:
        return self._next_window(after) + (self.patience + 1) * self.every

    def _next_window(self, step: int) -> int:
        """Return the first multiple of `every` that is at least `step`: the next window begins after that step."""
        return -(-step // self.every) * self.every

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        if self.begin is None:
            self.begin = self._next_window(max(last, self.last or 0))
        if step <= self.begin:
            return None
        value = metrics.get(self.metric)
        if value is not None:
            self._add(value)
        self.due |= step // self.every > max(last, self.begin) // self.every
        if self.due:  # on all ranks at the same step, also on those that had no value
            self._end_window(step)
        if self.waited < self.patience:
            return None
        assert self.value is not None
        assert self.best is not None
        better = "below" if self.mode == "min" else "above"
        reason = f"{self.metric} {self.value:.4g} not {better} {self.best:.4g} for {self.waited} x {self.every} steps"
        return Firing(step, self.name, reason, {self.metric: self.value, "best": self.best})

    def _add(self, value: Tensor | float) -> None:
        """Add a value to the present window."""
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(
                    f"Plateau: {self.metric} is a tensor of shape {tuple(value.shape)}: give one number, as its mean"
                )
            value = value.detach().float().reshape(())
            if isinstance(self.sum, Tensor):
                self.sum.add_(value)
            else:
                self.sum = value + self.sum  # a new tensor, so that the loop's is not written to
        else:
            self.sum += value
        self.count += 1

    def _end_window(self, step: int) -> None:
        """Compare the mean of the present window with the best one, and begin a new window.

        The mean is that of the values of all ranks. If no rank has had one, the window goes on.
        """
        total = self.sum if isinstance(self.sum, Tensor) else torch.tensor(self.sum, dtype=torch.float64, device="cpu")
        mean = mean_of_values_over_ranks(total, self.count)
        if mean is None:
            return
        self.value = mean
        self.sum, self.count, self.due = 0.0, 0, False
        if not math.isfinite(self.value) and not self.warned:
            self.warned = True
            warnings.warn(
                f"{self}: the mean of {self.metric} over the steps up to {step} is {self.value}; such a window is "
                "never an improvement, and before a finite one the trigger cannot fire",
                RuntimeWarning,
                stacklevel=2,
            )
        if self.best is None and math.isfinite(self.value):
            self.best = self.value
        elif self.best is not None and self._improved(self.value, self.best):
            self.best, self.waited = self.value, 0
        elif self.best is not None:
            self.waited += 1

    def _improved(self, value: float, best: float) -> bool:
        """Return whether a window's mean is better than the best one by more than `min_delta` times |best|."""
        gain = best - value if self.mode == "min" else value - best
        return gain > self.min_delta * abs(best)  # false for NaN

    def acted(self, step: int) -> None:
        self.begin, self.best, self.waited = self._next_window(step + self.cooldown), None, 0
        self.sum, self.count, self.due = 0.0, 0, False

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"sum": float(self.sum)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({"begin": 0, **state})  # older checkpoints have no "begin"
