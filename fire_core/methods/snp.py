"""Shrink and perturb (Ash and Adams, "On Warm-Starting Neural Network Training", NeurIPS 2020, arXiv 1910.08475; public
code: JordanAsh/warm_start)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import ChosenLayout
from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.ranges import Share, checked
from fire_core.reinit.fire import reinitialise
from fire_core.reinit.initial import initial_weights
from fire_core.reinit.perturb import shrink_and_perturb_
from fire_core.units.recycle import resample
from fire_core.weights import distributed
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import reset_optimizer_state


class ShrinkAndPerturb(Method):
    """W <- (1 - coef) W + perturb P for every parameter, P an initialisation; buffers and frozen weights stay.

    `variant=original`: a new P is drawn each time, from the distribution of each parameter's own initial entries, as
    the public code adds the weights of a newly built network. `variant=fire_paper`: P is the run's own initial weights.

    Args:
        coef: how much the weights shrink, in [0, 1]. The default is the public code's, which shrinks to 0.4 W; the FIRE
            paper's is 0.8.
        layout: the weights that this layout re-initialises get coef 1. For DQN these are the linear layers, which is
            known as SR-DQN (shrink and reset: D'Oro et al., ICLR 2023). None takes the same coef everywhere.
        perturb: weight of P, in [0, 1]. The default is the public code's. None takes the same as coef, so that 0
            changes nothing and 1 is a full reset, as in the FIRE paper.
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

    @property
    def reads_layout(self) -> bool:
        return False  # without a layout of its own it treats all weights alike

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        protected, generator = context.spared_or_frozen(net), context.own_draws()
        with net.unchanged_on_error():
            for name, module in net.modules.items():
                excluded = net.spared_or_shared(name, protected)
                weights = module.state_dict(keep_vars=True)
                kept = {id(p) for p in excluded}
                quantised = {
                    key for key, p in weights.items() if id(p) in kept and isinstance(p, Tensor) and not is_ordinary(p)
                }
                perturbation = {key: value for key, value in net.init[name].items() if key not in quantised}
                if self.variant == "original":
                    perturbation = {
                        key: redrawn(value, generator) if value.numel() else value
                        for key, value in perturbation.items()
                    }
                scaled = perturbation
                if self.perturb != self.coef:  # shrink_and_perturb_ multiplies by coef
                    scaled = {key: value * (self.perturb / self.coef) for key, value in perturbation.items()}
                shrink_and_perturb_(module, scaled, self.coef, excluded)
                entries = resolve(module, self.layout, exclude=excluded) if self.layout else []
                for entry in entries:
                    if entry.action == "reinit":
                        reinitialise(entry, initial_weights(perturbation, [entry]))
        reset_optimizer_state(context.optimizers, net.parameters(protected))
        return {}


def is_ordinary(weight: Tensor) -> bool:
    """Return whether a weight is one of torch's own tensors, with numbers that can be drawn: not a quantised one."""
    has_own_type = type(weight) in (Tensor, nn.Parameter) or distributed.is_sharded(weight)
    return has_own_type and weight.dtype.itemsize > 1


def redrawn(initial: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of the shape of an initial weight, drawn from its entries; of a sharded one from all ranks'."""
    return distributed.shard_as(resample(distributed.full(initial), initial.shape, generator), initial)
