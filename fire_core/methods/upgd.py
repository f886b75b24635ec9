"""UPGD, utility-based perturbed gradient descent (Elsayed and Mahmood, "Addressing Loss of Plasticity and Catastrophic
Forgetting in Continual Learning", ICLR 2024, arXiv 2404.00781; public code: mohmdelsayed/upgd, `weight_upgd`)."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Method, Net
from fire_core.ranges import Decay, NonNegative, Positive, checked


class UPGD(Method):
    """Instead of the trainer's optimizer: large, noisy steps for weights of little use, small ones for useful weights.

    For every weight w with gradient g (first-order global UPGD):
        u <- beta u - (1 - beta) g w                               running utility
        v = sigmoid(u / (1 - beta^t) / max over all weights of u)  in [0, 1]
        w <- (1 - lr decay) w - lr (g + sigma noise) (1 - v)       noise: standard normal

    Args:
        lr: learning rate.
        weight_decay: decay.
        beta: of the running utility.
        sigma: standard deviation of the noise.

    Raises:
        ValueError: an option is out of its range.
    """

    acts_within_phases = True

    @checked
    def __init__(
        self, lr: Positive = 1e-2, weight_decay: NonNegative = 1e-3, beta: Decay = 0.999, sigma: NonNegative = 1e-3
    ) -> None:
        self.options = {"lr": lr, "weight_decay": weight_decay, "beta": beta, "sigma": sigma}

    def optimizer(
        self, net: Net, default: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    ) -> torch.optim.Optimizer:
        return PerturbedDescent(net.parameters(), stack=len(net.parts), **self.options)

    def stacks(self) -> bool:
        return True


class PerturbedDescent(torch.optim.Optimizer):
    """The update of `UPGD`.

    Args:
        params: parameters.
        stack: of so many runs, each parameter (S, ...); 0: of one.
        **options: lr, weight_decay, beta, sigma.

    Attributes:
        as_run: of a stack, a context in which torch draws what the run of this place would draw alone.
    """

    def __init__(self, params: Iterable[nn.Parameter], stack: int = 0, **options: float) -> None:
        super().__init__(params, options)
        self.stack = stack
        self.as_run: Callable[[int], AbstractContextManager[Any]] = nullcontext

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        active = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        largest = []
        for p, group in active:
            state: dict[str, Any] = self.state[p]
            if not state:
                state["step"], state["utility"] = torch.zeros(()), torch.zeros_like(p)
            state["step"] += 1
            state["utility"].mul_(group["beta"]).addcmul_(p.grad, p, value=group["beta"] - 1)
            largest.append(state["utility"].flatten(1).amax(1) if self.stack else state["utility"].max())
        if not active:
            return
        top = torch.stack(largest).amax(0)
        noises = self.draw([p for p, _ in active])
        for (p, group), noise in zip(active, noises, strict=True):
            state = self.state[p]
            corrected = state["utility"] / (1 - group["beta"] ** state["step"].item())
            useless = 1 - self.sigmoid(corrected.div_(top.view(-1, *[1] * (p.ndim - 1)) if self.stack else top))
            noise.mul_(group["sigma"]).add_(p.grad).mul_(useless)
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(noise, alpha=-group["lr"])

    def draw(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Standard normal numbers for each parameter."""
        if not self.stack:
            return [torch.randn_like(p) for p in parameters]
        noises = [torch.empty_like(p) for p in parameters]
        for run in range(self.stack):
            with self.as_run(run):
                for noise in noises:
                    noise[run].normal_()
        return noises

    def sigmoid(self, x: Tensor) -> Tensor:
        """The logistic function in place, rounded for each run of a stack as alone: kernels take 32 numbers at once."""
        if not self.stack or x[0].numel() % 32 == 0:
            return x.sigmoid_()
        for part in x:
            part.sigmoid_()
        return x
