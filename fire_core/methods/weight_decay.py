"""L2 regularisation, the control of every regulariser."""

import torch
from torch import Tensor

from fire_core.methods.protocol import Method, Net


class WeightDecay(Method):
    """Loss + coef / 2 * sum ||theta||^2 over every parameter.

    Args:
        coef: at least 0.

    Raises:
        ValueError: `coef` is negative.
    """

    acts_within_phases = True

    def __init__(self, coef: float = 1e-3) -> None:
        if coef < 0:
            raise ValueError(f"coef must be at least 0, got {coef}")
        self.coef = coef

    def penalty(self, net: Net) -> Tensor:
        return self.coef / 2 * torch.stack(torch._foreach_norm(tuple(net.parameters()))).square().sum()
