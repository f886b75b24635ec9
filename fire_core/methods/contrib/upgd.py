"""UPGD, utility-based perturbed gradient descent (Elsayed and Mahmood, "Addressing Loss of Plasticity and Catastrophic
Forgetting in Continual Learning", ICLR 2024, arXiv 2404.00781; public code: mohmdelsayed/upgd, `weight_upgd`)."""

from collections.abc import Callable
from typing import Any

import torch

from fire_core.methods.protocol import MakeOptimizer, Method, Net
from fire_core.ranges import Decay, NonNegative, Positive, checked
from fire_core.weights.optimizers import evaluated


class UPGD(Method):
    """Replace the trainer's optimizer: weights of little use take large, noisy steps, useful weights small ones.

    For every weight w with gradient g (first-order global UPGD):
        u <- beta u - (1 - beta) g w                               running utility
        v = sigmoid(u / (1 - beta^t) / max over all weights of u)  in [0, 1]
        w <- (1 - lr decay) w - lr (g + sigma noise) (1 - v)       noise: standard normal

    Args:
        lr: learning rate.
        weight_decay: weight decay, `decay` above.
        beta: decay factor of the running utility.
        sigma: standard deviation of the noise.
    """

    @checked
    def __init__(
        self, lr: Positive = 1e-2, weight_decay: NonNegative = 1e-3, beta: Decay = 0.999, sigma: NonNegative = 1e-3
    ) -> None:
        self.options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "beta": beta, "sigma": sigma}

    def optimizer(self, net: Net, default: MakeOptimizer) -> torch.optim.Optimizer:
        return PerturbedDescent(net.parameters(), self.options)


class PerturbedDescent(torch.optim.Optimizer):
    """The optimizer that makes the update of `UPGD`.

    Its constructor takes the parameters or groups of them, and a dict of the options lr, weight_decay, beta and sigma.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of all parameters that have a gradient, which `closure` may compute; return its value."""
        loss = evaluated(closure)
        trained = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        largest_utilities = []
        for p, group in trained:
            state: dict[str, Any] = self.state[p]
            if not state:
                state["step"], state["utility"] = 0, torch.zeros_like(p)
            state["step"] += 1
            state["utility"].mul_(group["beta"]).addcmul_(p.grad, p, value=group["beta"] - 1)
            largest_utilities.append(state["utility"].max())
        if not trained:
            return loss
        largest_utility = torch.stack(largest_utilities).max()
        for p, group in trained:
            state = self.state[p]
            utility = state["utility"] / (1 - group["beta"] ** state["step"])
            # The public code divides by a largest utility that may be 0 or less, which gives NaN or turns the order of
            # the weights round. No weight is of use then, and each is taken for as useless as any other.
            scaled = torch.where(largest_utility > 0, utility / largest_utility, torch.zeros_like(utility))
            uselessness = 1 - scaled.sigmoid()
            update = torch.randn_like(p).mul_(group["sigma"]).add_(p.grad).mul_(uselessness)
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
        return loss
