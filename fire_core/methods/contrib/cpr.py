"""CPR, calibrated partial resets (McCutcheon, Chatzaroulas and Fallah, "Calibrated Partial Resets: Preventing Policy
Collapse in Continual RL", arXiv 2607.24996; public code: LucMc/continual-learning, `optim/cpr.py`). Until January 2026
that code called it CCBP, continuous (calibrated) continual backpropagation."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from fire_core.methods.contrib.regrama import gradient_scores
from fire_core.methods.layers import check_units
from fire_core.methods.protocol import Context, Method, Net
from fire_core.polar.steps import working_dtype
from fire_core.ranges import Count, Decay, NonNegative, Share, checked, one_of
from fire_core.units.graph import Units, weight
from fire_core.units.recycle import Draw, initial_draw
from fire_core.units.trace import unit_graph

# Each maps d = sharpness (utility - threshold) to the share of a unit that is reset, before the rate multiplies it.
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda d: (2 * torch.sigmoid(-d)).clamp(max=1),
    "exp": lambda d: (-d).exp().clamp(max=1),
    "softplus": lambda d: (F.softplus(-d) / math.log(2)).clamp(max=1),
    "linear": lambda d: (1 - d).clamp(0, 1),
}


class CalibratedPartialResets(Method):
    """Every `every` steps, move each unit towards a new one; the smaller its gradients have been, the farther.

    The utility u of a unit is the running mean, over steps, of its mean |gradient| of incoming weights divided by its
    layer's mean. At a reset, with r = rate * min(2 sigmoid(-sharpness (u - threshold)), 1):
        incoming weights <- (1 - r) W + r P;  outgoing weights <- (1 - r) W;  u <- 1
    where P is drawn from the layer's initial distribution. Biases and the optimizer's state stay. With d = sharpness
    (u - threshold), the other transforms are min(exp(-d), 1), min(softplus(-d) / log 2, 1) and 1 - d within [0, 1].
    CCBP was `transform=exp`, `rate=0.012`, `threshold=0.95`.

    Args:
        rate: largest share of a unit that is reset.
        sharpness: how steeply the share falls with the utility.
        threshold: utility up to which the share is the largest.
        decay: decay factor of the running utility.
        every: steps between two resets.
        transform: how the share falls with the utility: sigmoid, exp, softplus or linear.
    """

    FIELDS = ("steps", "utility")

    @checked
    def __init__(
        self,
        rate: Share = 0.015,
        sharpness: NonNegative = 16.0,
        threshold: NonNegative = 1.0,
        decay: Decay = 0.99,
        every: Count = 1000,
        transform: Annotated[str, one_of(*TRANSFORMS)] = "sigmoid",
    ) -> None:
        self.rate, self.sharpness, self.threshold, self.decay, self.every = rate, sharpness, threshold, decay, every
        self.transform = TRANSFORMS[transform]
        self.steps = 0
        self.utility: list[Tensor] = []

    def check(self, net: Net) -> None:
        check_units(net)

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        self.graph = unit_graph(net.modules)
        self.draw = initial_draw(net.modules, net.init)
        yield

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        scores = [gradient_scores(units) for units in self.graph]
        if not self.utility:
            self.utility = [torch.ones_like(score) for score in scores]
        self.utility = [
            self.decay * utility + (1 - self.decay) * score for utility, score in zip(self.utility, scores, strict=True)
        ]
        self.steps += 1
        if self.steps > 1 and (self.steps - 1) % self.every == 0:
            for units, utility in zip(self.graph, self.utility, strict=True):
                share = self.rate * self.transform(self.sharpness * (utility - self.threshold))
                reset_partly_(units, share, self.draw, context.generator)
            self.utility = [torch.ones_like(u) for u in self.utility]

    def idle_reason(self) -> str:
        return "" if self.steps > self.every else f"every={self.every} steps, of which it has seen {self.steps}"


def reset_partly_(units: Units, share: Tensor, draw: Draw, generator: torch.Generator) -> None:
    """Move units towards new ones, in place; a group with a frozen weight, bias or norm stays as it is.

    Args:
        units: a group of units.
        share: how far each unit moves, (units,) in [0, 1]; at 1 it is a new unit with outgoing weights of zero.
        draw: draws the new incoming weights.
        generator: a CPU generator.
    """
    if units.is_frozen:
        return
    for producer in units.producers:
        rows = weight(producer.layer)[producer.start : producer.start + units.count]
        new = draw(producer.layer, rows.shape, generator).to(rows)
        row_share = share.view(-1, *[1] * (rows.ndim - 1)).to(rows.device, working_dtype(rows))
        rows.copy_((1 - row_share) * rows + row_share * new)  # half precision is rounded once, here
    for consumer in units.consumers:
        kernel = weight(consumer.layer)
        column_factor = torch.ones(kernel.shape[1], dtype=working_dtype(kernel), device=kernel.device)
        columns = consumer.columns  # (units, k)
        if columns is None:
            columns = torch.arange(units.count, device=kernel.device)[:, None]
        column_factor[columns] = (1 - share)[:, None].to(column_factor)
        kernel.copy_(kernel * column_factor.view(1, -1, *[1] * (kernel.ndim - 2)))
