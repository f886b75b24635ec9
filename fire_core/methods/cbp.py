"""CBP, continual backpropagation (Dohare, Hernandez-Garcia, Lan, Rahman, Mahmood and Sutton, "Loss of plasticity in
deep continual learning", Nature 632, 2024; public code: shibhansh/loss-of-plasticity, `lop/algos/gnt.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor

from fire_core.methods.fire_paper import FirePaperCBP, chains
from fire_core.methods.layers import check_units
from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.ranges import Decay, at_least, checked
from fire_core.units.graph import Consumer, Units, weight
from fire_core.units.recycle import initial_draw, recycle_
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude


class ContinualBackprop(Method):
    """After each step, replace a small part of the mature units, those with the least utility.

    For every layer of units, with age a, running utility u and a debt d of replacements:
        a <- a + 1;  u <- decay u + (1 - decay) mean|h| mean|outgoing weight|
        d <- d + rate * (units with a > maturity)
    and while d >= 1 the mature unit of least u / (1 - decay^a) is replaced: incoming weights from the layer's initial
    distribution, bias and outgoing weights of zero, no history in the optimizer, a = u = 0, d <- d - 1.
    h is the unit's activation as its consumers read it, in the last micro-batch of a step; the model declares its units
    (`fire_core.units.graph`).

    The division corrects the bias of the running average, as the public code does; without it a unit just past
    `maturity` would seem useless. The debt is carried over from step to step, as in the public code with
    `accumulate=True`.

    No step waits for a GPU: the GPU itself chooses the units, and the CPU counts how many are mature.

    `variant=fire_paper` does what the FIRE authors' code does, see `fire_paper.FirePaperCBP`.

    Args:
        rate: share of the mature units that is replaced at each step.
        maturity: steps for which a new unit is not replaced.
        decay: decay factor of the running utility.
        variant: original or fire_paper.
    """

    FIELDS = ("state",)

    @checked
    def __init__(
        self,
        rate: Decay = 1e-4,
        maturity: Annotated[int, at_least(0)] = 1000,
        decay: Decay = 0.99,
        variant: Variant = "original",
    ) -> None:
        self.rate, self.maturity, self.decay, self.variant = rate, maturity, decay, variant
        self.state: dict[str, Any] = {}
        self.fire_paper: FirePaperCBP | None = None

    def check(self, net: Net) -> None:
        if self.variant == "original":
            check_units(net)

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        if self.variant == "fire_paper":
            self.fire_paper = FirePaperCBP(chains(net.modules), self.rate, self.maturity, self.decay, self.state)
            with self.fire_paper.watch.on():
                yield
            return
        self.graph = unit_graph(net.modules)
        self.unit_watch = Watch(self.graph, mean_magnitude)
        self.draw = initial_draw(net.modules, net.init)
        if not self.state:
            device = weight(self.graph[0].producers[0].layer).device
            count = sum(units.count for units in self.graph)
            self.state = {
                "steps": 0,
                "age": torch.zeros(count, dtype=torch.float32, device=device),
                "utility": torch.zeros(count, dtype=torch.float32, device=device),
                "debt": [0.0 for _ in self.graph],
                "mature": [0 for _ in self.graph],
                # the units of each layer that are not mature yet: (step at which they began, how many), oldest first
                "young": [[(0, units.count)] for units in self.graph],
            }
        with self.unit_watch.on():
            yield

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        if self.fire_paper is not None:
            self.fire_paper.step(context)
            return
        state = self.state
        state["steps"] += 1
        state["age"] += 1
        contributions = [
            magnitude * mean_outgoing_weight(units)
            for magnitude, units in zip(self.unit_watch.read(), self.graph, strict=True)
        ]
        state["utility"].mul_(self.decay).add_(torch.cat(contributions), alpha=1 - self.decay)
        counts = [units.count for units in self.graph]
        ages, utilities = state["age"].split(counts), state["utility"].split(counts)  # views, written in place below
        replaced = []
        for i, units in enumerate(self.graph):
            if units.is_frozen:
                continue
            number = self._replacements_due(i)
            if number:
                utility = utilities[i] / (1 - self.decay ** ages[i])
                utility = utility.masked_fill(ages[i] <= self.maturity, torch.inf)
                index = utility.topk(number, largest=False).indices
                ages[i].scatter_(0, index, 0)
                utilities[i].scatter_(0, index, 0)
                replaced.append((units, index))
        if replaced:
            recycle_(replaced, self.draw, context.generator, context.optimizers)

    def idle_reason(self) -> str:
        if self.fire_paper is not None or (steps := self.state.get("steps", 0)) > self.maturity:
            return ""
        return f"maturity={self.maturity} steps, of which it has seen {steps}"

    def _replacements_due(self, i: int) -> int:
        """Return how many units of layer i are replaced at this step, and take them off its debt and mature units."""
        young, debt, mature = self.state["young"][i], self.state["debt"], self.state["mature"]
        while young and self.state["steps"] - young[0][0] > self.maturity:
            mature[i] += young.pop(0)[1]
        debt[i] += self.rate * mature[i]
        number: int = min(int(debt[i]), mature[i])
        if number:
            debt[i] -= number
            mature[i] -= number
            young.append((self.state["steps"], number))
        return number


def mean_outgoing_weight(units: Units) -> Tensor:
    """Return the mean absolute outgoing weight of each unit over all layers that read it, (units,)."""
    return torch.cat([_outgoing_weights(consumer) for consumer in units.consumers]).mean(0)


def _outgoing_weights(consumer: Consumer) -> Tensor:
    """Return the mean absolute weight from each unit to each output of one layer that reads it, (outputs, units)."""
    magnitude = weight(consumer.layer).abs()
    if magnitude.ndim > 2:
        magnitude = magnitude.flatten(2).mean(2)  # over the kernel
    if consumer.columns is None:
        return magnitude
    return magnitude[:, consumer.columns.to(magnitude.device)].mean(-1)  # over the columns that hold one unit
