"""Shrink and perturb (Ash and Adams, "On Warm-Starting Neural Network Training", NeurIPS 2020, arXiv 1910.08475; public
code: JordanAsh/warm_start)."""

import torch

from fire_core.methods.layers import ChosenLayout
from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.ranges import Share, checked
from fire_core.reinit.fire import reinitialise
from fire_core.reinit.initial import initial_weights
from fire_core.reinit.perturb import shrink_and_perturb_
from fire_core.units.recycle import resample
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import reset_optimizer_state


class ShrinkAndPerturb(Method):
    """W <- (1 - coef) W + perturb P for every parameter, P an initialisation; buffers keep their values.

    `variant=original`: a new P is drawn each time, from the distribution of each parameter's own initial entries, as
    the public code adds the weights of a newly built network. `variant=fire_paper`: P is the run's own initial weights.

    Args:
        coef: in [0, 1]: how much the weights shrink. The default is the public code's, which shrinks to 0.4 W; the FIRE
            paper's is 0.8.
        layout: what this layout re-initialises gets coef 1, for DQN (where that is known as SR-DQN, shrink and reset:
            D'Oro et al., ICLR 2023) the linear layers; None: the same coef everywhere.
        perturb: in [0, 1]. The default is the public code's. None: the same as coef, so that 0 changes nothing and 1
            is a full reset, as in the FIRE paper.
        variant: original or fire_paper.
    """

    @checked
    def __init__(
        self,
        coef: Share = 0.6,
        layout: ChosenLayout = None,
        perturb: Share | None = 0.1,
        variant: Variant = "original",
    ) -> None:
        if perturb and not coef:
            raise ValueError(
                f"perturb={perturb} needs coef above 0, since weights that do not shrink only grow: set perturb=0"
            )
        self.coef, self.layout, self.variant = coef, layout, variant
        self.perturb = coef if perturb is None else perturb

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        # The same draws for a trained network and for its target network, on which an agent lets the method act next.
        generator = torch.Generator().manual_seed(context.generator.initial_seed())
        for name, module in net.modules.items():
            init = net.init[name]
            if self.variant == "original":
                init = {
                    key: resample(value, value.shape, generator) if value.numel() else value
                    for key, value in init.items()
                }
            scaled = init
            if self.perturb != self.coef:
                scaled = {key: value * (self.perturb / self.coef) for key, value in init.items()}
            kept = net.left_alone(name, context.spared)
            shrink_and_perturb_(module, scaled, self.coef, kept)
            entries = resolve(module, self.layout, exclude=kept) if self.layout else []
            for entry in (entry for entry in entries if entry.action == "reinit"):
                reinitialise(entry, initial_weights(init, [entry]))
        reset_optimizer_state(context.optimizers, net.parameters(context.spared))
        return {}
