"""Shrink & Perturb (Ash and Adams, "On Warm-Starting Neural Network Training", NeurIPS 2020)."""

from fire_core.methods.protocol import Context, Method, Net
from fire_core.optimizer import reset_optimizer_state
from fire_core.reinit import shrink_and_perturb_


class ShrinkAndPerturb(Method):
    """W <- (1 - coef) W + coef W_init for every parameter; buffers keep their values.

    The perturbation is the run's own initial weights, as in the FIRE paper's code, not a fresh draw.

    Args:
        coef: in [0, 1]; 0 changes nothing, 1 brings back the initial parameters.

    Raises:
        ValueError: `coef` is outside [0, 1].
    """

    def __init__(self, coef: float = 0.8) -> None:
        if not 0 <= coef <= 1:
            raise ValueError(f"coef must be in [0, 1], got {coef}")
        self.coef = coef

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        for name, module in net.modules.items():
            shrink_and_perturb_(module, net.init[name], self.coef)
        reset_optimizer_state(context.optimizers, net.parameters())
        return {}
