"""TRAC (Muppidi, Zhang and Yang, "Fast TRAC: A Parameter-Free Optimizer for Lifelong Reinforcement Learning", NeurIPS
2024, arXiv 2405.16642; public code: ComputationalRobotics/TRAC)."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fire_core.methods.protocol import Context, Method, Net
from fire_core.polar.steps import to_working
from fire_core.ranges import Positive, checked

BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)


class Trac(Method):
    """After each step of the trainer's optimizer, scale the distance of the weights from where they began.

    With theta_0 the weights when TRAC began, and d the displacement from there by the base optimizer's own steps:
        h = <d, gradient>;  for each beta: v <- beta^2 v + h^2;  sigma <- beta sigma - h
        s = scale / erfi(1 / sqrt 2) * sum over betas of erfi(sigma / (sqrt(2 v) + eps))
        d <- d + the base optimizer's step;  theta <- theta_0 + max(s, 0) d

    The base optimizer's step is what happens to the weights between `before_step` and `after_step`. What other methods
    do outside of it (recycled units, weights clipped after TRAC) counts as part of d at the next step, as in the public
    code, which looks at the weights right before each step. Half precision is computed in float32 and rounded once.

    Args:
        scale: the first scale, which the paper calls s_prev; its value hardly matters.
        eps: added to denominators.
    """

    FIELDS = ("start", "s", "variance", "sigma")
    follows_the_optimizer = True

    @checked
    def __init__(self, scale: Positive = 1e-8, eps: Positive = 1e-8) -> None:
        self.scale, self.eps = scale, eps
        self.betas = torch.tensor(BETAS, dtype=torch.float64, device="cpu")
        self.start: list[Tensor] = []
        self.s, self.variance = torch.zeros_like(self.betas), torch.zeros_like(self.betas)
        self.sigma = torch.full_like(self.betas, 1e-8)

    def watch(self, net: Net) -> AbstractContextManager[None]:
        self.start = self.start or [p.detach().clone() for p in net.parameters()]
        for name in ("betas", "s", "variance", "sigma"):  # moved here, as a copy at each step would wait for the GPU
            setattr(self, name, getattr(self, name).to(self.start[0].device))
        return nullcontext()

    @torch.no_grad()
    def before_step(self, net: Net, context: Context) -> None:
        starts = zip(net.parameters(), self.start, strict=True)
        # (parameter, its theta_0, its value before the step), for each parameter that the step trains
        self.trained = [
            (p, to_working(start), to_working(p).clone())
            for p, start in starts
            if p.grad is not None and p.requires_grad
        ]
        if not self.trained:
            self.d = []
            return
        inverse_scale = (1 / (self.s.sum() + self.eps)).float()
        self.d = [(before - start).mul_(inverse_scale.to(before.dtype)) for _, start, before in self.trained]
        gradients = [p.grad for p, _, _ in self.trained if p.grad is not None]
        h = torch.stack([(d * g).sum().double() for d, g in zip(self.d, gradients, strict=True)]).sum()
        self.variance = self.betas**2 * self.variance + h**2
        self.sigma = self.betas * self.sigma - h
        self.s = self.scale / ERFI_OF_ROOT_HALF * erfi(self.sigma / (math.sqrt(2) * self.variance.sqrt() + self.eps))

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        scale = self.s.sum().clamp(min=0)
        for (p, start, before), d in zip(self.trained, self.d, strict=True):
            displacement = d.add_(p - before).mul_(scale.to(d.dtype))
            p.copy_(displacement.add_(start))


def erfi(x: Tensor) -> Tensor:
    """Return the imaginary error function, 2/sqrt(pi) times the integral of exp(t^2) from 0 to x, in float64.

    Up to |x| = 6 its power series is summed, whose terms all have one sign; beyond that its asymptotic series.
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


ERFI_OF_ROOT_HALF = erfi(torch.tensor(math.sqrt(0.5), dtype=torch.float64, device="cpu"))
