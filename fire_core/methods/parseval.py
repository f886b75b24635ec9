"""Parseval regularisation (Chung, Lee, Raghavan, Kumar and Precup, "Parseval Regularization for Continual
Reinforcement Learning", NeurIPS 2024, arXiv 2412.07224; public code: wechu/parseval_reg; after Cisse et al., "Parseval
Networks", ICML 2017)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.layers import flattened_weights, hidden_layers_of, is_norm
from fire_core.methods.protocol import Method, Net, Variant
from fire_core.ranges import NonNegative, Positive, checked

WIDTH = 64  # width of the layers for which the public code's coefficients are tuned


class Parseval(Method):
    """Add coef * sum over hidden layers of (64 / d_out)^2 ||W W^T - s I||_F^2 to the loss; s = 2, ReLU's squared gain.

    Hidden layers are all linear layers and convolutions except the output layers; a convolution is the matrix
    (c_out, c_in k_h k_w). The factor makes one `coef` fit several widths: the public code computes it from the one
    width of its networks, here each layer has its own. Biases, norms, embeddings and free parameters do not count.

    `variant=fire_paper` does what the FIRE authors' code does: it takes every linear layer and convolution, the output
    layer too, without the factor and with s = 1, and adds coef * sum ||g * g - s||^2 over the scales g of norms. (That
    code takes a group norm's scale for an n x 1 matrix; none of the paper's networks has one, so that is not repeated.)

    Args:
        coef: strength of the regularisation, at least 0.
        scale: s, the squared singular value that the penalty pulls to; None takes 2 (original) or 1 (fire_paper).
        variant: original or fire_paper.
    """

    @checked
    def __init__(self, coef: NonNegative = 1e-3, scale: Positive | None = None, variant: Variant = "original") -> None:
        self.coef, self.variant = coef, variant
        default = 2.0 if variant == "original" else 1.0
        self.scale = default if scale is None else scale

    def penalty(self, net: Net) -> Tensor:
        original = self.variant == "original"
        groups: dict[tuple[int, ...], list[Tensor]] = {}  # equal shapes go through one batched product
        for weight in flattened_weights(hidden_layers_of(net)) if original else fire_paper_weights(net):
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


def fire_paper_weights(net: Net) -> list[Tensor]:
    """Return what the FIRE authors' code counts: matrices of linear layers and convolutions, scales (d,) of norms."""

    def is_counted(module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor):
            return False
        return isinstance(module, (nn.Linear, _ConvNd)) or (weight.ndim == 1 and is_norm(module))

    return flattened_weights(module for root in net.modules.values() for module in root.modules() if is_counted(module))


class _Distance(torch.autograd.Function):
    """The sum of ||W W^T - s I||_F^2 over the matrices of W (b, m, n), with its gradient 4 (W W^T - s I) W.

    Autograd would take three matrix products, this takes two. For a tall W they are made smaller by the other Gram
    matrix: ||W W^T - s I||^2 = ||W^T W - s I||^2 + s^2 (m - n), and both have the same gradient.
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, s: float) -> Tensor:
        b, m, n = W.shape
        wide = m <= n
        with torch.autocast(W.device.type, enabled=False):
            gram = W @ W.mT if wide else W.mT @ W  # (b, k, k) with k = min(m, n)
        gram.diagonal(dim1=-2, dim2=-1).sub_(s)
        ctx.save_for_backward(W, gram)
        ctx.wide = wide
        return gram.square().sum() + s**2 * b * max(0, m - n)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient for W, (b, m, n), given that of the sum, and None for s."""
        W, gram = ctx.saved_tensors
        with torch.autocast(W.device.type, enabled=False):
            return (gram @ W if ctx.wide else W @ gram) * (4 * gradient), None
