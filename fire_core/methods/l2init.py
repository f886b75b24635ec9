"""L2 Init, regenerative regularisation (Kumar, Marklund and Van Roy, arXiv 2308.11958)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import norms
from fire_core.methods.protocol import Method, Net
from fire_core.ranges import NonNegative, checked


class L2Init(Method):
    """Loss + coef / 2 * sum ||theta - theta_0||^2 over every parameter, theta_0 being the run's initial weights.

    The gradient is coef * (theta - theta_0), clipped together with that of the task.

    Args:
        coef: at least 0.
    """

    @checked
    def __init__(self, coef: NonNegative = 1e-3) -> None:
        self.coef = coef

    def penalty(self, net: Net) -> Tensor:
        start: dict[nn.Parameter, Tensor] = {}
        for key, module in net.modules.items():
            for name, parameter in module.named_parameters():  # shared ones once
                start.setdefault(parameter, net.init[key][name])
        # One kernel launch for all weights on a GPU; torch has no public call for it.
        distances = torch._foreach_sub(tuple(start), tuple(start.values()))
        return self.coef / 2 * norms(distances).square().sum()
