"""`trigger=readiness`: optimization readiness on mini-batches of what a program trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from torch import Tensor

from fire_core.ranges import Count, Positive, at_least
from fire_core.triggers import Readiness
from fire_core.triggers.measured import Steps

# (mini-batches, samples of each) -> the loss of each, a mean over its samples.
Losses = Callable[[int, int], Iterable[Tensor]]


class ReadinessOnBatches(Readiness):
    """`Readiness` on mini-batches that the program draws, from the data of the phase or from the replay.

    Samples are drawn uniformly with replacement by a generator of the step's own, so the run's random numbers stay
    where they are, and a resumed run draws the same.

    Args:
        below: threshold.
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
        batches: mini-batches of a measurement, each of which costs a pass forward and backward.
        samples: of each.

    Attributes:
        draw: set by `fire_core.harness.training.firing.start`.
    """

    draw: Losses

    def __init__(
        self,
        below: Positive,
        every: Count = 1000,
        rearm: Positive | None = None,
        cooldown: Steps = 0,
        batches: Annotated[int, at_least(2)] = 32,
        samples: Count = 16,
    ) -> None:
        super().__init__(self.drawn, below, every, rearm, cooldown)
        self.batches, self.samples = batches, samples

    def drawn(self) -> Iterable[Tensor]:
        """The losses of a measurement."""
        return self.draw(self.batches, self.samples)
