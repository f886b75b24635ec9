"""AdamO, Adam with decoupled isometry regularisation (Rosseau, Müller and Nowé, "Preserving Plasticity in Continual
Learning via Dynamical Isometry", ICML 2026, arXiv 2606.09762; its authors have published no code)."""

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.layers import check_plain, layers_of
from fire_core.methods.protocol import MakeOptimizer, Method, Net
from fire_core.ranges import Decay, NonNegative, Positive, checked
from fire_core.weights.optimizers import evaluated


class AdamO(Method):
    """Replace the trainer's optimizer by Adam with a step of each weight matrix towards isometry beside it.

    With the task's gradient g at step t:
        m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        theta <- theta - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) - lr coef r
    where r, taken at the weights before the step, is the gradient of the sum over layers of
        ||W^T W - I||_F^2 if d_out >= d_in, else ||W W^T - I||_F^2
    Like AdamW's decay, r is not part of the moments and is not divided by them.

    W is the weight of each linear layer and convolution; a convolution is the matrix (c_out, c_in k_h k_w), and a fused
    projection is one matrix. A weight without a gradient stays as it is, as with Adam.

    Args:
        lr: learning rate of both steps; the trainer's schedule applies.
        coef: strength of the isometry regularisation.
        betas: Adam's betas.
        eps: Adam's epsilon.
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
    """The optimizer that makes the update of `AdamO`.

    Args:
        params: all parameters.
        layers: the parameters among them that are pulled towards isometry, the weights of layers.
        coef: strength of the isometry regularisation.
        **options: options of `torch.optim.Adam`.
    """

    def __init__(self, params: Iterable[nn.Parameter], layers: Set[Tensor], coef: float, **options: Any) -> None:
        super().__init__(params, **options)
        self.layers, self.coef = layers, coef

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make Adam's step, and the step towards isometry from the weights as they were before it.

        If `closure` is given, it computes the gradients first, and its value is returned.
        """
        loss = evaluated(closure)
        isometry_steps = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.layers and parameter.grad is not None:
                    gradient = isometry_gradient(parameter.flatten(1)).view_as(parameter)
                    isometry_steps.append((parameter, gradient, group["lr"]))
        super().step()
        for parameter, gradient, lr in isometry_steps:
            parameter.sub_(gradient, alpha=lr * self.coef)
        return loss


def isometry_gradient(W: Tensor) -> Tensor:
    """Return the gradient of ||W^T W - I||_F^2, or of ||W W^T - I||_F^2 where W is wide; (d_out, d_in) as W."""
    wide = W.shape[-2] < W.shape[-1]
    gram = W @ W.mT if wide else W.mT @ W
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return 4 * (gram @ W if wide else W @ gram)


def layer_weights(net: Net) -> set[Tensor]:
    """Return the weights of all linear layers and convolutions."""
    return {layer.weight for layer in layers_of(net)}
