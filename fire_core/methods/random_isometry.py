"""Random isometries in the place of weights: a control of FIRE that keeps nothing of what was learned."""

from collections.abc import Mapping

import torch

from fire_core.methods.protocol import Context, Method, Net
from fire_core.polar.options import check_word
from fire_core.ranges import checked
from fire_core.reinit.fire import fire_
from fire_core.reinit.project import own_scale, stack
from fire_core.reinit.scales import check_scaling
from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.layout import PRESETS, resolve
from fire_core.weights.optimizer_state import holding


class RandomIsometry(Method):
    """Every weight matrix that FIRE would project becomes a random isometry, uniformly drawn, at FIRE's scale.

    W <- scale * polar(G), the entries of G being independent standard normal numbers. Rotating G changes nothing of its
    distribution and rotates the polar factor alike, so that this one has the Haar distribution: of all isometries of
    its shape none is likelier than another. The factor is exact (DfI = 0).

    A matrix is what FIRE takes for one: a convolution has one for each kernel position, fused projections one for each
    of their parts. What the layout re-initialises goes back to its initial values, as with FIRE, and the optimizer
    forgets what it knows of the changed weights. Biases, norms and all else stay.

    Args:
        layout: which weights, see `fire_core.weights.layout`; None: the network's own.
        scale: modular, orthogonal, match_init, init_norm, keep_norm (of the weights that are replaced) or
            variance_factor; docs/scales.md.
        variance_factor: for the scale of that name; refused with another.
        trainable_only: leave frozen weights alone.

    Raises:
        ValueError: an unknown name, a number out of range, or a network of which the layout takes no matrix.
    """

    @checked
    def __init__(
        self,
        layout: str | Mapping[str, str] | None = None,
        scale: str = "modular",
        variance_factor: float = 1.0,
        trainable_only: bool = True,
    ) -> None:
        check_scaling(scale, 0.0, 1.0, variance_factor)
        if not isinstance(layout, Mapping | None):
            check_word("layout", layout, tuple(PRESETS))
        self.layout, self.scale, self.variance_factor = layout, scale, variance_factor
        self.spares_frozen = trainable_only

    def check(self, net: Net) -> None:
        if not any(self._matrices(net, name) for name in net.modules):
            raise ValueError(f"layout={self.layout or net.layout} takes no matrix of it")

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        # The same draws for a trained network and for its target network, on which an agent lets the method act next.
        generator = torch.Generator().manual_seed(context.generator.initial_seed())
        for name, module in net.modules.items():
            for entry in self._matrices(net, name):
                fill_(entry, generator, keep_norm=self.scale == "keep_norm")
            fire_(
                module,
                "exact",
                layout=self.layout or net.layout,
                optimizer=holding(context.optimizers, module.parameters()),  # none of a target network
                init=net.init[name],
                scale=self.scale,
                trainable_only=self.spares_frozen,
                variance_factor=self.variance_factor,
                measure=False,  # its DfI and SFE would be those of the Gaussians; the trainer measures
            )
        return {}

    def _matrices(self, net: Net, name: str) -> list[Entry]:
        """What is drawn anew of one network."""
        entries = resolve(net.modules[name], self.layout or net.layout, trainable_only=self.spares_frozen)
        return [entry for entry in entries if entry.action == "project" and entry.parameter.numel()]


def fill_(entry: Entry, generator: torch.Generator, keep_norm: bool) -> None:
    """Fill the matrices of an entry with standard normal numbers.

    Args:
        entry: count matrices (d_out, d_in).
        generator: on the CPU.
        keep_norm: give each matrix the Frobenius norm that it had.
    """
    weight = distributed.full(entry.parameter).clone()  # of a fused weight other rows stay
    old = stack([(entry, weight)])  # (count, d_out, d_in)
    new = torch.randn(old.shape, generator=generator, dtype=torch.float64).to(old)
    if keep_norm:
        new *= own_scale(old) / own_scale(new)
    entry.write_(weight, new.to(weight.dtype))
    distributed.write_(entry.parameter, weight)
