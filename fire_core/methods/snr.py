"""SNR, self-normalised resets (Farias and Jozefiak, "Self-Normalized Resets for Plasticity in Continual Learning",
ICLR 2025, arXiv 2410.20098; public code: ajozefiak/SelfNormalizedResets, `src/algorithms/snr.py`)."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor

from fire_core.methods.fire_paper import FirePaperSilences, OutputWatch, UnitSilences, chains, recycle_rows_
from fire_core.methods.layers import check_units
from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.ranges import Count, at_least, checked, within
from fire_core.units.recycle import initial_draw, is_cpu, recycle_
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, peak


class SelfNormalizedResets(Method):
    """Recycle a unit once it has been silent for longer than a percentile of its own silences.

    After each step, for every unit: a unit that is above 0 anywhere in the last micro-batch fires, which ends its
    silence; a unit whose silence reaches its threshold is recycled. Every `every` epochs thresholds follow the silences
    since the last update (see `Silences`). A recycled unit gets incoming weights from the layer's initial distribution,
    bias and outgoing weights of zero, and no history in the optimizer. The model declares its units and which layers
    read them (`fire_core.units.graph`).

    The public code moves thresholds every 16 passes over the data, so that a percentile is taken over thousands of
    silences. The FIRE authors' code takes the 16 for steps; among at most 16 silences the percentiles .94 to .99 are
    all the largest one. `variant=fire_paper` repeats this: thresholds are also moved, to one window, at the very first
    step, units are measured before normalisation in layers chained in execution order, ages grow by a sliding window
    of the last 512 samples, new weights and biases are uniform in +-1/sqrt(fan_in), outgoing weights and moments stay,
    and Adam's step counter of every touched weight restarts.

    Args:
        percentile: percentile of a unit's silences that its threshold follows, in (0, 1).
        every: epochs (fire_paper: steps) between two updates of the thresholds; in an agent rows of its log.
        max_age: largest threshold, in samples; a threshold starts at half of it.
        growth: factor by which a threshold grows when the percentile is not below it.
        variant: original or fire_paper.
    """

    @checked
    def __init__(
        self,
        percentile: Annotated[float, within(0, 1, open_low=True, open_high=True)] = 0.99,
        every: Count = 16,
        max_age: Annotated[int, within(2, 1_000_000)] = 20_000,
        growth: Annotated[float, at_least(1)] = 2.0,
        variant: Variant = "original",
    ) -> None:
        self.percentile, self.every, self.max_age, self.growth = percentile, every, max_age, growth
        self.variant = variant
        self.silences: UnitSilences | None = None

    def check(self, net: Net) -> None:
        if self.variant == "original":
            check_units(net)

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        self.unit_watch: Watch | OutputWatch
        if self.variant == "fire_paper":
            self.chains = chains(net.modules)
            self.unit_watch = OutputWatch([*itertools.chain(*self.chains)], lambda link, x, dims: peak(x, dims))
        else:
            self.unit_watch = Watch(unit_graph(net.modules), peak)
            self.draw = initial_draw(net.modules, net.init)
        with self.unit_watch.on():
            yield

    def after_step(self, net: Net, context: Context) -> None:
        peaks = self.unit_watch.read()
        fired = torch.cat(peaks) > 0  # (units of all layers,)
        if self.silences is None:
            self.silences = self._new_silences(len(fired), self.unit_watch.samples, fired.device)
        silent = self.silences.step(fired, self.unit_watch.samples)
        if is_cpu(silent.device) and not silent.any():  # on a GPU `any` would wait for it
            return
        masks = torch.split(silent, [len(peaks_of_layer) for peaks_of_layer in peaks])
        if isinstance(self.unit_watch, OutputWatch):
            recycle_rows_(self.chains, masks, context)
        else:
            recycle_(zip(self.unit_watch.graph, masks, strict=True), self.draw, context.generator, context.optimizers)

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        if isinstance(self.silences, Silences):
            self.silences.end_epoch()
        return {}

    def _new_silences(self, units: int, batch: int, device: torch.device) -> UnitSilences:
        """Return the record of how long each unit has been silent, empty, in the form of the chosen variant.

        Args:
            units: number of units of all layers together.
            batch: number of samples in a training pass.
            device: the device that holds the record.
        """
        options = (self.percentile, self.every, self.max_age, self.growth)
        if self.variant == "fire_paper":
            return FirePaperSilences(units, *options, device=device)
        return Silences(units, *options, batch=batch, device=device)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.silences is None else self.silences.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.silences = self._new_silences(len(state["age"]), state.get("batch", 1), state["age"].device)
            self.silences.load_state_dict(state)


class Silences(UnitSilences):
    """Silences and thresholds as SNR's authors keep them: thresholds move at the end of an epoch.

    At an update a threshold goes to the percentile of the unit's silences since the last update if that is smaller,
    else it grows by the factor `growth`; it stays between the samples of a batch and `max_age`. A unit that had no
    silence has a percentile of 0, hence a threshold of one batch: the next batch in which it is silent recycles it. The
    public code does the same.

    The public code counts silences in a histogram over samples (20,001 numbers for each unit). This histogram is over
    batches, which is the same as long as all batches have one size.

    Args:
        *options: see `UnitSilences`.
        batch: samples of a batch.
        **more: see `UnitSilences`.
    """

    FIELDS = ("age", "threshold", "counts", "epochs", "batch")

    def __init__(self, *options: Any, batch: int, **more: Any) -> None:
        super().__init__(*options, **more)
        self.epochs, self.batch = 0, batch
        # counts[unit, n]: number of silences of n batches since the last update. Column 0 takes the units that fire
        # again at once, which is no silence.
        self.counts = torch.zeros(len(self.age), self.max_age // batch + 2, dtype=torch.int32, device=self.age.device)

    @torch.no_grad()
    def step(self, fired: Tensor, samples: int) -> Tensor:
        self._count_silences(fired)
        self.age = torch.where(fired, 0, self.age + samples)
        silent = self.age >= self.threshold
        self._count_silences(silent)
        self.age = torch.where(silent, 0, self.age)
        return silent

    def _count_silences(self, ended: Tensor) -> None:
        """Add the present silences of the units that `ended` marks, (units,) bool, to the histogram."""
        length = (self.age / self.batch).round().long().clamp(max=self.counts.shape[1] - 1)
        self.counts.scatter_add_(1, length[:, None], ended[:, None].to(self.counts.dtype))

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Move the thresholds, if `every` epochs have passed."""
        self.epochs += 1
        if self.epochs % self.every:
            return
        counts = self.counts[:, 1:]
        share = counts.cumsum(1) / counts.sum(1, keepdim=True)  # (units, n): share that lasted at most n batches
        percentile = ((share >= self.percentile).int().argmax(1) + 1) * self.batch
        percentile = torch.where(share[:, 0].isnan(), 0, percentile)  # NaN: 0 / 0, the unit had no silence
        grown = (self.threshold * self.growth).long()
        moved = torch.where(percentile < self.threshold, percentile, grown)
        self.threshold = moved.clamp(self.batch, max(self.max_age, self.batch))
        self.counts.zero_()
