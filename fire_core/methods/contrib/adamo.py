"""AdamO, Adam with decoupled isometry regularisation (Rosseau, Müller and Nowé, "Preserving Plasticity in Continual
Learning via Dynamical Isometry", ICML 2026, arXiv 2606.09762; its authors have published no code)."""

from collections.abc import Iterable, Set
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.layers import check_plain, layers_of
from fire_core.methods.protocol import MakeOptimizer, Method, Net
from fire_core.ranges import Decay, NonNegative, Positive, checked


class AdamO(Method):
    """Instead of the trainer's optimizer: Adam, and beside it a step of each weight matrix towards isometry.

    With the task's gradient g at step t:
        m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        theta <- theta - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) - lr coef r
    where r, of the weights before the step, is the gradient of the sum over layers of
        ||W^T W - I||_F^2 if d_out >= d_in, else ||W W^T - I||_F^2
    As AdamW's decay, r is not part of the moments and is not divided by them.

    W are the weights of all linear layers and convolutions, a convolution being the matrix (c_out, c_in k_h k_w), and a
    fused projection one matrix. A weight that a step does not train stays, as with Adam.

    Args:
        lr: of both steps; the trainer's schedule applies.
        coef: strength of the isometry regularisation.
        betas: of Adam.
        eps: of Adam.
    """

    @checked
    def __init__(
        self,
        lr: Positive = 1e-3,
        coef: NonNegative = 1e-3,
        betas: tuple[Decay, Decay] = (0.9, 0.999),
        eps: Positive = 1e-8,
    ) -> None:
        self.lr, self.coef, self.betas, self.eps = lr, coef, (betas[0], betas[1]), eps

    def check(self, net: Net) -> None:
        check_plain(net, layers_of(net))
        if not layer_weights(net):
            raise ValueError("it has no linear layer and no convolution")

    def optimizer(self, net: Net, default: MakeOptimizer) -> torch.optim.Optimizer:
        return IsometricAdam(
            net.parameters(), layer_weights(net), self.coef, lr=self.lr, betas=self.betas, eps=self.eps
        )


class IsometricAdam(torch.optim.Adam):
    """The update of `AdamO`.

    Args:
        params: all parameters.
        layers: those of them that are weights of layers.
        coef: strength of the isometry regularisation.
        **options: of `torch.optim.Adam`.
    """

    def __init__(self, params: Iterable[nn.Parameter], layers: Set[Tensor], coef: float, **options: Any) -> None:
        super().__init__(params, **options)
        self.layers, self.coef = layers, coef

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        pulls = [
            (group, p, pull(p.flatten(1)).view_as(p))
            for group in self.param_groups
            for p in group["params"]
            if p in self.layers and p.grad is not None
        ]
        super().step()
        for group, parameter, gradient in pulls:
            parameter.sub_(gradient, alpha=group["lr"] * self.coef)


def pull(W: Tensor) -> Tensor:
    """The gradient of ||W^T W - I||_F^2, or of ||W W^T - I||_F^2 where W is wide: (d_out, d_in) -> the same."""
    wide = W.shape[-2] < W.shape[-1]
    gram = W @ W.mT if wide else W.mT @ W
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return 4 * (gram @ W if wide else W @ gram)


def layer_weights(net: Net) -> set[Tensor]:
    """The weights of all linear layers and convolutions."""
    return {layer.weight for layer in layers_of(net)}
