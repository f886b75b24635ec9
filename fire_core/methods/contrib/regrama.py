"""ReGraMa, resetting by gradient magnitude (Liu, Wu, Obando-Ceron, Castro, Courville and Pan, "Measure gradients, not
activations! Enhancing neuronal activity in deep reinforcement learning", NeurIPS 2025, arXiv 2505.24061)."""

import torch
from torch import Tensor

from fire_core.methods.layers import check_units
from fire_core.methods.protocol import Context, Method, Net
from fire_core.polar.steps import to_working
from fire_core.ranges import Count, NonNegative, checked
from fire_core.units.graph import Units, weight
from fire_core.units.recycle import initial_draw, recycle_
from fire_core.units.trace import unit_graph


class ReGraMa(Method):
    """Every `every` steps, recycle the units whose incoming weights have next to no gradient.

    The score of a unit is the mean |gradient| of its incoming weights divided by its layer's mean; a unit with a score
    of at most `threshold` is inactive. An inactive unit gets incoming weights from the layer's initial distribution,
    bias and outgoing weights of zero, and no history in the optimizer. This follows the authors of CPR (public code:
    LucMc/continual-learning, `optim/regrama.py`). ReGraMa's own code (torressliu/grad-based-plasticity-metrics) has
    this score and resets other things, see docs/methods.md.

    Args:
        threshold: largest score of an inactive unit.
        every: steps between two recyclings.
    """

    FIELDS = ("steps",)

    @checked
    def __init__(self, threshold: NonNegative = 0.01, every: Count = 1000) -> None:
        self.threshold, self.every, self.steps = threshold, every, 0

    def check(self, net: Net) -> None:
        check_units(net)

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        self.steps += 1
        if self.steps % self.every:
            return
        graph = unit_graph(net.modules)
        masks = [gradient_scores(units) <= self.threshold for units in graph]
        recycle_(
            zip(graph, masks, strict=True), initial_draw(net.modules, net.init), context.generator, context.optimizers
        )

    def idle_reason(self) -> str:
        return "" if self.steps >= self.every else f"every={self.every} steps, of which it has seen {self.steps}"


def gradient_scores(units: Units) -> Tensor:
    """Return the mean |gradient| of each unit's incoming weights divided by the mean over its layer, (units,)."""
    magnitudes = []
    for producer in units.producers:
        kernel = weight(producer.layer)
        gradient = torch.zeros_like(kernel) if kernel.grad is None else kernel.grad
        magnitudes.append(to_working(gradient)[producer.start : producer.start + units.count].flatten(1).abs())
    unit_means = torch.cat(magnitudes, 1).mean(1)
    return unit_means / (unit_means.mean() + 1e-8)
