"""L2 regularisation, the control for the other regularisers: `L2Init` with zero in place of the initial weights."""

from torch import Tensor

from fire_core.methods.l2init import L2Init
from fire_core.methods.layers import norms
from fire_core.methods.protocol import Net


class WeightDecay(L2Init):
    """Add coef / 2 * sum ||theta||^2 over every parameter to the loss.

    Args:
        coef: strength of the regularisation, at least 0.
    """

    def penalty(self, net: Net) -> Tensor:
        return self.coef / 2 * norms(net.parameters()).square().sum()
