"""Parseval regularisation (Chung, Lee, Raghavan, Kumar and Precup, "Parseval Regularization for Continual
Reinforcement Learning", NeurIPS 2024, arXiv 2412.07224; public code: wechu/parseval_reg; after Cisse et al., "Parseval
Networks", ICML 2017)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.layers import hidden_layers_of, matrices
from fire_core.methods.protocol import Method, Net, Variant
from fire_core.ranges import NonNegative, Positive, checked

WIDTH = 64  # for which the public code's coefficients are tuned


class Parseval(Method):
    """Loss + coef * sum over hidden layers of (64 / d_out)^2 ||W W^T - s I||_F^2, with s the gain of ReLU squared, 2.

    Hidden are all linear layers and convolutions but the output layers; a convolution is the matrix
    (c_out, c_in k_h k_w). The factor makes one `coef` fit several widths: the public code has it for its networks' one
    width, here each layer has its own. Biases, norms, embeddings and free parameters do not count.

    `variant=fire_paper`, as the FIRE authors' code: every linear layer and convolution, the output layer too, without
    the factor and with s = 1, and + coef * sum ||g * g - s||^2 over the scales g of norms. (Its code takes a group
    norm's scale for an n x 1 matrix; none of the paper's networks has one, so that is not repeated.)

    Args:
        coef: at least 0.
        scale: s, the squared singular value that rows are drawn to; None: 2 (original), 1 (fire_paper).
        variant: original or fire_paper.
    """

    @checked
    def __init__(self, coef: NonNegative = 1e-3, scale: Positive | None = None, variant: Variant = "original") -> None:
        self.coef, self.variant = coef, variant
        self.scale = scale if scale is not None else 2.0 if variant == "original" else 1.0

    def penalty(self, net: Net) -> Tensor:
        original = self.variant == "original"
        groups: dict[tuple[int, ...], list[Tensor]] = {}  # equal shapes go through one batched product
        for weight in matrices(hidden_layers_of(net)) if original else weights(net):
            groups.setdefault((weight.device.index or 0, *weight.shape), []).append(weight)
        terms = []
        for group in groups.values():
            if group[0].ndim == 1:
                terms.append((torch.stack(group).square() - self.scale).square().sum())
                continue
            factor = (WIDTH / group[0].shape[-2]) ** 2 if original else 1.0
            terms.append(factor * _Distance.apply(torch.stack(group), self.scale))
        return self.coef * torch.stack(terms).sum()

    def check(self, net: Net) -> None:
        if self.variant == "original" and not hidden_layers_of(net):
            raise ValueError("it has no hidden layer")


def weights(net: Net) -> list[Tensor]:
    """What the FIRE authors' code counts: the matrices of linear layers and convolutions, the scales (d,) of norms."""

    def counts(module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        return isinstance(weight, Tensor) and (isinstance(module, (nn.Linear, _ConvNd)) or weight.ndim == 1)

    return matrices(module for root in net.modules.values() for module in root.modules() if counts(module))


class _Distance(torch.autograd.Function):
    """sum ||W W^T - s I||_F^2 over W (b, m, n), with its gradient 4 (W W^T - s I) W.

    Autograd would take three products where these are two; with the shorter side's Gram matrix they are small too:
    ||W W^T - s I||^2 = ||W^T W - s I||^2 + s^2 (m - n), and both have the same gradient.
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, s: float) -> Tensor:
        b, m, n = W.shape
        wide = m <= n
        gram = W @ W.mT if wide else W.mT @ W  # (b, k, k) with k = min(m, n)
        gram.diagonal(dim1=-2, dim2=-1).sub_(s)
        ctx.save_for_backward(W, gram)
        ctx.wide = wide
        return gram.square().sum() + s**2 * b * max(0, m - n)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        W, gram = ctx.saved_tensors
        return (gram @ W if ctx.wide else W @ gram) * (4 * gradient), None
