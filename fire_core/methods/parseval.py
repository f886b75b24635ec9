"""Parseval regularisation (Chung, Lee, Raghavan, Kumar and Precup, "Parseval Regularization for Continual
Reinforcement Learning", NeurIPS 2024; after Cisse et al., "Parseval Networks", ICML 2017)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.protocol import Method, Net


class Parseval(Method):
    """Loss + coef * (sum ||W W^T - s I||_F^2 over linear layers and convolutions + sum ||g * g - s||^2 over norms).

    A convolution is the matrix (c_out, c_in k_h k_w); g is the scale of a batch, layer or group norm. Biases,
    embeddings and free parameters do not count. The reference code takes a group norm's scale for an n x 1 matrix;
    none of the paper's networks has one, so there is no variant for it.

    Args:
        coef: at least 0.
        scale: s, the squared singular value that rows are drawn to.

    Raises:
        ValueError: `coef` is negative or `scale` is not positive.
    """

    acts_within_phases = True

    def __init__(self, coef: float = 1e-3, scale: float = 1.0) -> None:
        if coef < 0:
            raise ValueError(f"coef must be at least 0, got {coef}")
        if scale <= 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.coef, self.scale = coef, scale

    def penalty(self, net: Net) -> Tensor:
        groups: dict[tuple[int, ...], list[Tensor]] = {}  # equal shapes go through one batched product
        for weight in weights(net):
            flat = weight.flatten(1) if weight.ndim > 1 else weight  # (d_out, d_in) or (d,)
            groups.setdefault((flat.device.index or 0, *flat.shape), []).append(flat)
        terms = [
            _Distance.apply(torch.stack(group), self.scale)
            if group[0].ndim == 2
            else (torch.stack(group).square() - self.scale).square().sum()
            for group in groups.values()
        ]
        return self.coef * torch.stack(terms).sum()


def weights(net: Net) -> list[Tensor]:
    """The weights that count, shared ones once; of linear layers side by side, (n, d_out, d_in), each matrix."""
    found: dict[Tensor, nn.Module] = {}
    for root in net.modules.values():
        for module in root.modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor) and (isinstance(module, (nn.Linear, _ConvNd)) or weight.ndim == 1):
                found[weight] = module
    stacked = ((w, isinstance(module, nn.Linear) and w.ndim == 3) for w, module in found.items())
    return [matrix for w, several in stacked for matrix in (w.unbind() if several else [w])]


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
