"""L2 Init, regenerative regularisation (Kumar, Marklund and Van Roy, arXiv 2308.11958)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import norms
from fire_core.methods.protocol import Method, Net
from fire_core.ranges import NonNegative, checked


class L2Init(Method):
    """Add coef / 2 * sum ||theta - theta_0||^2 over every parameter to the loss; theta_0: the run's initial weights.

    Its gradient is coef * (theta - theta_0), which is clipped together with the task's gradient.

    Args:
        coef: strength of the regularisation, at least 0.
    """

    @checked
    def __init__(self, coef: NonNegative = 1e-3) -> None:
        self.coef = coef

    def penalty(self, net: Net) -> Tensor:
        initial: dict[nn.Parameter, Tensor] = {}
        for key, module in net.modules.items():
            for name, parameter in module.named_parameters():
                initial.setdefault(parameter, net.init[key][name])  # a parameter that two modules share counts once
        # One kernel launch for all weights on a GPU; torch has no public call for it.
        differences = torch._foreach_sub(tuple(initial), tuple(initial.values()))
        return self.coef / 2 * norms(differences).square().sum()
