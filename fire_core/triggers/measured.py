"""Triggers that measure a number of the model every few steps and fire when it passes a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fire_core.methods.protocol import Net
from fire_core.metrics import dfi
from fire_core.ranges import Count, Positive, at_least, checked
from fire_core.reinit.scales import scale_of
from fire_core.triggers.trigger import Firing, Metrics, Trigger
from fire_core.weights.distributed import full, mean_over_ranks
from fire_core.weights.entry import Entry
from fire_core.weights.layout import resolve

REARM_SHARE = 0.1  # by default `rearm` lies this share of the threshold away from it
Steps = Annotated[int, at_least(0)]


class Measured(Trigger):
    """Fires when a number of the model, measured every `every` steps, passes a threshold.

    Hysteresis: after it has fired, it fires again only once the number has come back past `rearm`. So an action that
    does not help is not repeated for ever.

    Args:
        above: fire when the number lies above this. Give exactly one of `above` and `below`.
        below: fire when the number lies below this.
        every: steps between two measurements.
        rearm: the number past which the trigger may fire again. None takes 0.9 of `above`, or `below` / 0.9 but at most
            halfway from `below` to the number's upper bound (of thresholds below 0: 1.1 of `above`, 0.9 of `below`).
        cooldown: steps after any action in which it does not fire.

    Raises:
        ValueError: not exactly one threshold is given, `rearm` lies on the wrong side of it, or a number is out of
            range.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("last", "due", "armed", "value", "acted_at")
    missing = "there is nothing to measure"  # what the error says if no number comes
    upper_bound: ClassVar[float] = math.inf  # the largest value that the number can have

    @checked
    def __init__(
        self,
        above: float | None = None,
        below: float | None = None,
        every: Count = 100,
        rearm: float | None = None,
        cooldown: Steps = 0,
    ) -> None:
        super().__init__()
        threshold = above if above is not None else below
        if threshold is None or None not in (above, below):
            raise ValueError(f"{type(self).__name__}: give either above or below")
        self.side = "above" if below is None else "below"
        self.threshold, self.every, self.cooldown = threshold, every, cooldown
        self.rearm = self._default_rearm() if rearm is None else rearm
        if self._is_beyond(self.rearm, threshold):
            raise ValueError(f"{type(self).__name__}: rearm={rearm} must not lie {self.side} the threshold {threshold}")
        self.due = False  # whether a measurement is due
        self.armed = True  # whether it may fire
        self.value: float | None = None  # the last measured number
        self.acted_at: int | None = None  # the step of the last action
        self._steps_overdue = 0  # steps for which a measurement has been due without a number

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.side}={self.threshold:g}, every={self.every})"

    def earliest(self, after: int = 0) -> float:
        return (after // self.every + 1) * self.every

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        if net is None:
            raise ValueError(f"{type(self).__name__} measures the model: ask(step, model)")

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        assert net is not None
        was_due = self.due  # if not, hooks are registered in this call, and there cannot be a number yet
        self.due |= step // self.every > last // self.every
        measured = self.measure(net) if self.due else None
        if measured is None:
            if was_due:
                self._steps_overdue += step - last
            if self._steps_overdue > self.every:
                raise ValueError(f"{type(self).__name__}: {self.missing}")
            return None
        self.due, self._steps_overdue, self.value = False, 0, mean_over_ranks(measured)
        cooling_down = self.acted_at is not None and step - self.acted_at <= self.cooldown
        if self._has_come_back(self.value):
            self.armed = True
        if cooling_down or not self.armed or not self._is_beyond(self.value, self.threshold):
            return None
        self.armed = False
        reason = f"{self.name} {self.value:.4g} {self.side} {self.threshold:g}"
        return Firing(step, self.name, reason, {self.name: self.value})

    def _default_rearm(self) -> float:
        """Return the value of `rearm` where none is given."""
        if self.side == "above":
            return self.threshold - REARM_SHARE * abs(self.threshold)
        shifted = self.threshold * (1 - REARM_SHARE) if self.threshold < 0 else self.threshold / (1 - REARM_SHARE)
        return min(shifted, (self.threshold + self.upper_bound) / 2)

    def _is_beyond(self, value: float, limit: float) -> bool:
        """Return whether a value lies on the side of a limit on which the trigger fires; False for NaN."""
        return value > limit if self.side == "above" else value < limit

    def _has_come_back(self, value: float) -> bool:
        """Return whether a value lies on the other side of `rearm`; a number that cannot be negative ends at 0."""
        is_back = value < self.rearm if self.side == "above" else value > self.rearm
        return is_back or value == self.rearm == 0

    def acted(self, step: int) -> None:
        self.acted_at = step

    def measure(self, net: Net) -> Tensor | None:
        """Return the number, a scalar tensor; or None if it is not known yet, to be asked again after the next step."""
        raise NotImplementedError


class Drift(Measured):
    """Fires when the weights have moved away from isometries since the last action (DfI; Han et al., ICLR 2026).

    The measured number is the increase of the weights' deviation since the first step after the last action, or the
    first step of the run, at which the weights are finite. The deviation is the mean of (sigma^2 / s^2 - 1)^2 over all
    singular values, s being FIRE's target. Frozen weights do not count: when a weight is frozen or unfrozen, the
    increase starts again at 0, because it would be that of other weights; while all are frozen, the number is NaN.

    As the increase starts again at 0 after each action, the trigger has no `rearm`.

    Args:
        above: the trigger fires above this increase.
        every: steps between two measurements.
        cooldown: steps after an action in which it does not fire.
        layout: which weights are measured, see `fire_core.weights.layout`; None takes the network's own layout.
    """

    name = "drift"
    FIELDS = (*Measured.FIELDS, "baseline")

    @checked
    def __init__(
        self,
        above: Positive,
        every: Count = 100,
        cooldown: Steps = 0,
        layout: str | None = None,
    ) -> None:
        super().__init__(above, None, every, None, cooldown)
        self.layout = layout
        self.baseline: float | None = None
        # Ids of all parameters that are not frozen, and the entries of the weights that FIRE would project.
        self._cached_entries: tuple[list[int], list[Entry]] | None = None

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        super().prepare(net, metrics, probe)
        assert net is not None
        if not self._entries(net):
            raise ValueError("Drift: the model has no weight matrices that FIRE would project")

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        assert net is not None
        self._entries(net)  # may drop the baseline
        if self.baseline is None or not math.isfinite(self.baseline):
            self.baseline = mean_over_ranks(self._deviation(net))
        return super().look(last, step, net, metrics)

    def measure(self, net: Net) -> Tensor:
        assert self.baseline is not None
        return self._deviation(net) - self.baseline

    def acted(self, step: int) -> None:
        super().acted(step)
        self.baseline, self.armed = None, True

    def _entries(self, net: Net) -> list[Entry]:
        """Return the weights that FIRE would project, read anew only when the networks train other parameters.

        The baseline is dropped then, because it is the deviation of other weights.
        """
        parameter_ids = [id(p) for p in net.parameters() if p.requires_grad]
        if self._cached_entries is None or self._cached_entries[0] != parameter_ids:
            if self._cached_entries is not None:
                self.baseline = None
            entries = []
            for module in net.modules.values():
                entries += [e for e in resolve(module, self.layout or net.layout) if e.action == "project"]
            self._cached_entries = parameter_ids, entries
        return self._cached_entries[1]

    @torch.no_grad()
    def _deviation(self, net: Net) -> Tensor:
        """Return the mean of (sigma^2 / s^2 - 1)^2 over all singular values, a scalar on the device; NaN if none."""
        entries = self._entries(net)
        if not entries:
            return torch.tensor(torch.nan)
        singular_values = sum(entry.count * min(entry.shape) for entry in entries)
        sums = []
        for entry in entries:
            matrices = entry.view(full(entry.parameter.detach()))  # (..., d_out, d_in)
            sums.append(dfi(matrices, scale_of(entry, "modular", 1.0, {})).sum())
        # Nothing is read from the device here, so the host does not wait.
        return torch.stack([total.to(sums[0].device) for total in sums]).sum() / singular_values
