"""SNR, self-normalised resets (Farias and Jozefiak, "Self-Normalized Resets for Plasticity in Continual Learning",
ICLR 2025, arXiv 2410.20098)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fire_core.methods.fire_paper import chain
from fire_core.methods.protocol import Context, Method, Net
from fire_core.methods.variants import check_variant
from fire_core.units.find import unit_graph
from fire_core.units.recycle import recycle_masked_, uniform
from fire_core.units.watch import Watch, peak


class SelfNormalizedResets(Method):
    """Recycle a unit that has been silent for longer than it ever is: than a percentile of its own silences.

    After each step, for every unit: it fires if it is above 0 anywhere in the batch, which ends its silence; a silence
    that reaches the unit's threshold recycles it. Every `every` steps thresholds follow the silences seen since the
    last time (see `Silences`). A recycled unit gets new incoming weights, outgoing weights of zero, and no history in
    the optimizer. Units and what their readers see of them: as the model declares (`fire_core.units.graph`).

    `variant=fire_paper` does what the authors' code does: thresholds fall to one batch at the very first step and
    whenever a unit has shown no silence, units are looked at before normalisation in layers chained in execution
    order, outgoing weights and moments stay, Adam's step counter of every touched weight restarts. It ages units by a
    sliding window of 512 samples at each step; ours age by the batch in both variants.

    Args:
        percentile: of a unit's silences, in (0, 1).
        every: steps between two updates of the thresholds.
        max_age: largest threshold, in samples; half of it is the first.
        growth: factor of a threshold that no percentile lies below.
        variant: original or fire_paper.

    Raises:
        ValueError: an option is out of its range, or the network has no units that are known.
    """

    acts_within_phases = True

    def __init__(
        self,
        percentile: float = 0.99,
        every: int = 16,
        max_age: int = 20_000,
        growth: float = 2.0,
        variant: str = "original",
    ) -> None:
        if not 0 < percentile < 1:
            raise ValueError(f"percentile must be in (0, 1), got {percentile}")
        if every < 1 or max_age < 2 or growth < 1:
            raise ValueError(f"every={every}, max_age={max_age}, growth={growth} must be at least 1, 2, 1")
        check_variant(variant)
        self.options = (percentile, every, max_age, growth, variant == "fire_paper")
        self.variant = variant
        self.silences: Silences | None = None

    def check(self, net: Net) -> None:
        if self.variant != "fire_paper":
            unit_graph(net.modules, say=True)

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        self.reference = chain(net.modules) if self.variant == "fire_paper" else None
        self.graph = unit_graph(net.modules) if self.reference is None else []
        self.seen: Any = Watch(self.graph, peak) if self.reference is None else self.reference.watch_snr()
        with self.seen.on():
            yield

    def after_step(self, net: Net, context: Context) -> None:
        peaks = self.seen.read()
        fired = torch.cat(peaks) > 0  # (all units,)
        if self.silences is None:
            self.silences = Silences(len(fired), *self.options, device=fired.device)
        silent = self.silences.step(fired, self.seen.samples)
        if not silent.any():
            return
        masks = torch.split(silent, [len(part) for part in peaks])
        if self.reference is not None:
            self.reference.recycle_(masks, context)
            return
        recycle_masked_(self.graph, masks, uniform, context.generator, context.optimizers, draw_bias=True)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.silences is None else self.silences.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.silences = Silences(len(state["age"]), *self.options, device=state["age"].device)
            self.silences.load_state_dict(state)


class Silences:
    """How long each unit has been silent, in samples, and from when on that is too long.

    A threshold goes to the percentile q of the unit's silences since the last update if q is smaller, else it grows by
    `growth`; it stays within a batch and `max_age`. At most one silence ends in a step, so `every` numbers a unit hold
    all of them, and no histogram over the ages is needed.

    Args:
        units: how many.
        percentile, every, max_age, growth: see `SelfNormalizedResets`.
        collapse: as the reference: thresholds of units without a silence fall to a batch, at step 0 all.
        device: of the state.
    """

    def __init__(
        self,
        units: int,
        percentile: float,
        every: int,
        max_age: int,
        growth: float,
        collapse: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.percentile, self.every, self.max_age, self.growth = percentile, every, max_age, growth
        self.collapse = collapse
        self.steps = 0
        self.age = torch.zeros(units, dtype=torch.int64, device=device)
        self.threshold = torch.full_like(self.age, max_age // 2)
        self.ended = self.age.new_zeros(every + 1, units)  # silences since the last update; 0: none. Row 0: right at it

    @torch.no_grad()
    def step(self, fired: Tensor, samples: int) -> Tensor:
        """One batch: (units,) whether each unit fired -> (units,) whether it has been silent for too long."""
        row = (self.steps - 1) % self.every + 1
        self.ended[row] = torch.where(fired, self.age, 0)
        self.age = torch.where(fired, 0, self.age + samples)
        if self.steps % self.every == 0:
            self._update(samples)
            row = 0
        silent = self.age >= self.threshold
        self.ended[row] = torch.where(silent, self.age, self.ended[row])
        self.age = torch.where(silent, 0, self.age)
        self.steps += 1
        return silent

    def _update(self, samples: int) -> None:
        silences = self.ended.clamp(max=self.max_age).sort(dim=0).values  # (every + 1, units), no silence first
        count = (silences > 0).sum(dim=0)  # (units,)
        rank = torch.arange(1, len(silences) + 1, device=count.device)[:, None] - (len(silences) - count)
        reached = (rank > 0) & (rank / (count + 1e-8) >= self.percentile)
        quantile = silences.gather(0, reached.int().argmax(dim=0)[None])[0]  # the first that reaches the percentile
        quantile = torch.where(count > 0, quantile, 1)
        grown = (self.threshold * self.growth).long()
        new = torch.where(quantile < self.threshold, quantile, grown).clamp(samples, self.max_age)
        self.threshold = new if self.collapse else torch.where(count > 0, new, self.threshold)
        self.ended.zero_()

    def state_dict(self) -> dict[str, Any]:
        """For a resume."""
        return {"age": self.age, "threshold": self.threshold, "ended": self.ended, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.age, self.threshold, self.ended = state["age"], state["threshold"], state["ended"].clone()
        self.steps = state["steps"]
