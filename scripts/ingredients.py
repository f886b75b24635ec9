"""What FIRE consists of, one thing at a time: methods for `scripts/plasticity.sh variants` alone.

    python -m vision.train method=fire method._target_=scripts.ingredients.KeepsOptimizer method.name=optimizer_kept

They take FIRE's options, also those that they do not use, so that `method=fire` can name them. Two more of FIRE's
ingredients are methods like others: `method=optimizer_reset` and `method=random_isometry`.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.fire import Fire
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.weights.optimizer_state import reset_optimizer_state


class KeepsOptimizer(Fire):
    """FIRE, but the optimizer keeps its state."""

    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        return super().at_boundary(net, replace(context, optimizers=[]))


class Rescales(Method):
    """Linear weights get the Frobenius norm that FIRE gives them, and keep their shape; their optimizer state is reset.

    The isometry of d_out x d_in times sqrt(d_out / d_in) has the norm sqrt(d_out / d_in * min(d_out, d_in)).
    """

    def __init__(self, **options: Any) -> None:
        pass

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        weights = linear_weights(net)
        for weight in weights:
            rows, columns = weight.shape
            weight.mul_(math.sqrt(rows / columns * min(rows, columns)) / weight.norm())
        reset_optimizer_state(context.optimizers, weights)
        return {}


def linear_weights(net: Net) -> list[Tensor]:
    """The weights of all linear layers."""
    modules = (module for root in net.modules.values() for module in root.modules())
    return [module.weight for module in modules if isinstance(module, nn.Linear)]
