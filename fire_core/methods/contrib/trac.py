"""TRAC (Muppidi, Zhang and Yang, "Fast TRAC: A Parameter-Free Optimizer for Lifelong Reinforcement Learning", NeurIPS
2024, arXiv 2405.16642; public code: ComputationalRobotics/TRAC)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Positive, checked

BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)


class Trac(Method):
    """After each step of the trainer's optimizer, scale how far weights are from where they began.

    With theta_0 the weights when TRAC began, and the base optimizer's own path theta_0 + d:
        h = <d, gradient>;  for each beta: v <- beta^2 v + h^2;  sigma <- beta sigma - h
        s = scale / erfi(1 / sqrt 2) * sum over betas of erfi(sigma / (sqrt(2 v) + eps))
        d <- d + the base optimizer's step;  theta <- theta_0 + max(s, 0) d

    The base optimizer's step is what happens to the weights between `penalty` and `after_step`. What other methods do
    outside of it (recycled units, weights clipped after TRAC) belongs to the path at the next step, as in the public
    code, which looks at the weights right before each step.

    Args:
        scale: the first scale, which the paper calls s_prev; its value hardly matters.
        eps: in denominators.

    Raises:
        ValueError: an option is not positive.
    """

    acts_within_phases = True

    @checked
    def __init__(self, scale: Positive = 1e-8, eps: Positive = 1e-8) -> None:
        self.scale, self.eps = scale, eps
        self.state: dict[str, Any] = {}

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        self.before = [p.detach().clone() for p in net.parameters()]
        device = self.before[0].device
        self.betas = torch.tensor(BETAS, dtype=torch.float64, device=device)  # once: a GPU waits for it
        if not self.state:
            zeros = torch.zeros(len(BETAS), dtype=torch.float64, device=device)
            self.state = {
                "start": [p.clone() for p in self.before],
                "s": zeros.clone(),
                "variance": zeros.clone(),
                "sigma": zeros + 1e-8,
            }
        yield

    @torch.no_grad()
    def penalty(self, net: Net) -> None:
        """No penalty: the moment right before the optimizer's step, whose weights are kept."""
        for before, parameter in zip(self.before, net.parameters(), strict=True):
            before.copy_(parameter)

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        state, parameters = self.state, list(net.parameters())
        betas = self.betas
        inverse = (1 / (state["s"].sum() + self.eps)).float()
        moved = [i for i, p in enumerate(parameters) if p.grad is not None]
        paths = {}
        for i in moved:
            path = self.before[i] - state["start"][i]
            paths[i] = path.mul_(inverse.to(path.dtype))
        products = [(paths[i] * parameters[i].grad).sum().double() for i in moved]
        h = torch.stack(products).sum()
        state["variance"] = betas**2 * state["variance"] + h**2
        state["sigma"] = betas * state["sigma"] - h
        ratio = state["sigma"] / (math.sqrt(2) * state["variance"].sqrt() + self.eps)
        state["s"] = self.scale / UNIT * erfi(ratio)
        factor = state["s"].sum().clamp(min=0)
        for i in moved:
            path = paths[i].add_(parameters[i] - self.before[i])
            path.mul_(factor.to(path.dtype))
            parameters[i].copy_(path.add_(state["start"][i]))

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def erfi(x: Tensor) -> Tensor:
    """The imaginary error function, 2/sqrt(pi) times the integral of exp(t^2) from 0 to x, in float64.

    By its power series, whose terms all have one sign, up to |x| = 6, and by its asymptotic series beyond.
    """
    near = x.clamp(-6, 6)
    term, series, square = near.clone(), near.clone(), near.square()
    for n in range(1, 130):
        term.mul_(square).div_(n)
        series.add_(term / (2 * n + 1))
    far = torch.where(x.abs() > 6, x, 6.0)
    tail = sum(math.prod(range(1, 2 * n, 2)) / (2 * far.square()) ** n for n in range(12))
    beyond = far.square().exp() / (far * math.sqrt(math.pi)) * tail
    return torch.where(x.abs() > 6, beyond, 2 / math.sqrt(math.pi) * series)


UNIT = erfi(torch.tensor(math.sqrt(0.5), dtype=torch.float64))
