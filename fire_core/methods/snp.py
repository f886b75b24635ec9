"""Shrink & Perturb (Ash and Adams, "On Warm-Starting Neural Network Training", NeurIPS 2020)."""

from collections.abc import Mapping

import torch

from fire_core.methods.protocol import Context, Method, Net
from fire_core.reinit.perturb import shrink_and_perturb_
from fire_core.weights.distributed import write_
from fire_core.weights.layout import PRESETS, resolve
from fire_core.weights.optimizer_state import reset_optimizer_state


class ShrinkAndPerturb(Method):
    """W <- (1 - coef) W + coef W_init for every parameter; buffers keep their values.

    The perturbation is the run's own initial weights, as in the FIRE paper's code, not a fresh draw.

    Args:
        coef: in [0, 1]; 0 changes nothing, 1 brings back the initial parameters.
        layout: what this layout re-initialises gets coef 1, for DQN (where that is known as SR-DQN, shrink and reset:
            D'Oro et al., ICLR 2023) the linear layers; None: the same coef everywhere.

    Raises:
        ValueError: `coef` is outside [0, 1], or the layout is unknown.
    """

    def __init__(self, coef: float = 0.8, layout: str | Mapping[str, str] | None = None) -> None:
        if not 0 <= coef <= 1:
            raise ValueError(f"coef must be in [0, 1], got {coef}")
        if isinstance(layout, str) and layout not in PRESETS:
            raise ValueError(f"layout={layout} is unknown; accepted: {', '.join(PRESETS)}")
        self.coef, self.layout = coef, layout

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        for name, module in net.modules.items():
            init = net.init[name]
            shrink_and_perturb_(module, init, self.coef)
            for entry in resolve(module, self.layout) if self.layout else []:
                if entry.action == "reinit":
                    write_(entry.parameter, init[entry.name].to(entry.parameter))
        reset_optimizer_state(context.optimizers, net.parameters())
        return {}
