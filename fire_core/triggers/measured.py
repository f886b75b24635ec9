"""Triggers that measure the model every few steps and fire when the number passes a threshold."""

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

REARM = 0.9
Steps = Annotated[int, at_least(0)]


class Measured(Trigger):
    """Fires when a number of the model, measured every `every` steps, passes a threshold.

    Hysteresis: after an action that it asked for it fires again only once the number has come back past `rearm`. An
    action that does not help is thus not repeated for ever.

    Args:
        above: fire when the number lies above this.
        below: or below this; one of the two.
        every: steps between two measurements.
        rearm: default: 0.9 of `above`, or `below` / 0.9, at most halfway to the number's largest.
        cooldown: steps after any action in which it does not fire.

    Raises:
        ValueError: not exactly one threshold; `rearm` on its wrong side; a number out of range.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("last", "due", "armed", "value", "acted_at")
    missing = "there is nothing to measure"
    most: ClassVar[float] = math.inf  # that the number can be

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
        self.sign, self.side = (1, "above") if below is None else (-1, "below")
        self.threshold, self.every, self.cooldown = threshold, every, cooldown
        self.rearm = min(threshold * REARM**self.sign, (threshold + self.most) / 2) if rearm is None else rearm
        if self.sign * (self.rearm - threshold) > 0:
            raise ValueError(f"{type(self).__name__}: rearm={rearm} must not lie {self.side} the threshold {threshold}")
        self.due = False  # a measurement
        self.armed = True
        self.value: float | None = None  # that was measured last
        self.acted_at: int | None = None
        self._waiting = 0  # steps since the measurement is due

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.side}={self.threshold:g}, every={self.every})"

    def earliest(self, after: int = 0) -> float:
        return (after // self.every + 1) * self.every

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        if net is None:
            raise ValueError(f"{type(self).__name__} measures the model: ask(step, model)")

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        assert net is not None
        was_due = self.due  # else the hooks are put on now, and there is nothing yet to see
        self.due |= step // self.every > last // self.every
        measured = self.measure(net) if self.due else None
        if measured is None:
            self._waiting += (step - last) * was_due
            if self._waiting > self.every:
                raise ValueError(f"{type(self).__name__}: {self.missing}")
            return None
        self.due, self._waiting, self.value = False, 0, mean_over_ranks(measured)
        cooling = self.acted_at is not None and step - self.acted_at <= self.cooldown
        self.armed |= self.sign * (self.value - self.rearm) < 0 or self.value == self.rearm == 0
        if cooling or not self.armed or not self.sign * (self.value - self.threshold) > 0:  # NaN: no
            return None
        self.armed = False
        reason = f"{self.name} {self.value:.4g} {self.side} {self.threshold:g}"
        return Firing(step, self.name, reason, {self.name: self.value})

    def acted(self, step: int) -> None:
        self.acted_at = step

    def measure(self, net: Net) -> Tensor | None:
        """The number, a scalar; None if it is not there yet: asked for again after the next step."""
        raise NotImplementedError


class Drift(Measured):
    """How much farther the weights are from isometries than after the last action (DfI; Han et al., ICLR 2026).

    The number is the mean over all singular values of (sigma^2 / s^2 - 1)^2, s FIRE's target, minus the same number at
    the first step after the last action, or of the run. Frozen weights do not count.

    Args:
        above: threshold of the increase.
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
        layout: which weights, see `fire_core.weights.layout`; None: the network's own.
    """

    name = "drift"
    FIELDS = (*Measured.FIELDS, "baseline")

    @checked
    def __init__(
        self,
        above: Positive,
        every: Count = 100,
        rearm: Positive | None = None,
        cooldown: Steps = 0,
        layout: str | None = None,
    ) -> None:
        super().__init__(above, None, every, rearm, cooldown)
        self.layout = layout
        self.baseline: float | None = None
        self._found: tuple[list[int], list[Entry]] | None = None

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        super().prepare(net, metrics, probe)
        assert net is not None
        if not self._entries(net):
            raise ValueError("Drift: the model has no weight matrices that FIRE would project")

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        assert net is not None
        if self.baseline is None:
            self.baseline = mean_over_ranks(self._deviation(net))
        return super().look(last, step, net, metrics)

    def measure(self, net: Net) -> Tensor:
        assert self.baseline is not None
        return self._deviation(net) - self.baseline

    def acted(self, step: int) -> None:
        super().acted(step)
        self.baseline = None

    def _entries(self, net: Net) -> list[Entry]:
        parameters = [id(p) for p in net.parameters()]
        if self._found is None or self._found[0] != parameters:
            entries = [e for m in net.modules.values() for e in resolve(m, self.layout or net.layout)]
            self._found = parameters, [e for e in entries if e.action == "project"]
        return self._found[1]

    @torch.no_grad()
    def _deviation(self, net: Net) -> Tensor:
        entries = self._entries(net)
        values = sum(entry.count * min(entry.shape) for entry in entries)
        sums = []
        for entry in entries:
            matrices = entry.view(full(entry.parameter.detach()))  # (..., d_out, d_in)
            sums.append(dfi(matrices, scale_of(entry, "modular", 1.0, {})).sum())
        return torch.stack([total.to(sums[0].device) for total in sums]).sum() / values  # waits for nothing
