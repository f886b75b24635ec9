"""A trigger for loops that have data of what comes next: how ready the network is to learn them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import torch
from torch import Tensor

from fire_core.methods.protocol import Net
from fire_core.ranges import Count, Positive, at_least, checked
from fire_core.triggers.measured import Measured, Steps
from fire_core.weights.distributed import full

# (mini-batches, samples of each) -> the loss of each, a mean over its samples, one after the other.
Losses = Callable[[int, int], Iterable[Tensor]]


class Readiness(Measured):
    """Optimization readiness for given data, |g|^2 / loss times |g|^2 / E |g_B|^2 (Wang et al., arXiv 2605.09044).

    g is the gradient over the data, g_B that of a mini-batch. For a loss with an L-Lipschitz gradient, one step of SGD
    at its best rate lowers the expected loss by at least this share / 2 L. The paper could not be read; the formula is
    as two public repositories quote it. They take 128 mini-batches of 4 samples of the task that comes: a measurement
    costs 128 small passes, so choose `every` accordingly. On data that are learned already it is near 0, whatever the
    network's plasticity. What it said in our own runs: docs/results/triggers.md.

    Args:
        losses: gives the losses of mini-batches that are drawn alike. The model is in evaluation mode meanwhile, and
            its gradients are left alone. None: the programs set them, on samples drawn uniformly with replacement from
            the data of the phase or the replay, by a generator of the step's own.
        below: threshold.
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
        batches: mini-batches of a measurement, each of which costs a pass forward and backward.
        samples: of each.
    """

    name = "readiness"

    @checked
    def __init__(
        self,
        losses: Losses | None = None,
        *,
        below: Positive,
        every: Count = 10_000,
        rearm: Positive | None = None,
        cooldown: Steps = 0,
        batches: Annotated[int, at_least(2)] = 32,
        samples: Count = 16,
    ) -> None:
        super().__init__(None, below, every, rearm, cooldown)
        self.losses, self.batches, self.samples = losses, batches, samples

    def measure(self, net: Net) -> Tensor:
        """The number; |g|^2 is estimated without bias, (n |mean of g_B|^2 - mean of |g_B|^2) / (n - 1), at least 0."""
        parameters = [p for p in net.parameters() if p.requires_grad]
        sums = [torch.zeros_like(p) for p in parameters]
        squares, losses = [], []
        assert self.losses is not None
        with net.mode(training=False), torch.enable_grad():
            for loss in self.losses(self.batches, self.samples):
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                for total, gradient in zip(sums, gradients, strict=True):
                    if gradient is not None:
                        total += gradient
                squares.append(torch.stack([full(g).square().sum() for g in gradients if g is not None]).sum())
                losses.append(loss.detach())
        n = len(losses)
        batch = torch.stack(squares).mean()
        mean = torch.stack([(full(total) / n).square().sum() for total in sums]).sum()
        whole = ((n * mean - batch) / (n - 1)).clamp_min(0)
        return whole.square() / (torch.stack(losses).mean() * batch).clamp_min(torch.finfo(torch.float32).tiny)
