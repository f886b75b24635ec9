"""Random isometries in the place of weights: a control of FIRE that keeps nothing of what was learned."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from fire_core.methods.fire import Fire
from fire_core.methods.layers import ChosenLayout
from fire_core.methods.protocol import BoundaryReport, Context, Net
from fire_core.polar.factor import polar_factor
from fire_core.ranges import checked
from fire_core.reinit.project import own_scale, stack
from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.layout import resolve

Redraws = Literal["both", "left", "right"]


class RandomIsometry(Fire):
    """Every weight matrix that FIRE would project becomes a random isometry, uniformly drawn, at FIRE's scale.

    W <- scale * polar(G), the entries of G being independent standard normal numbers. A rotation of G does not change
    its distribution and rotates its polar factor in the same way, so that the polar factor has the Haar distribution:
    all isometries of its shape are equally likely. The factor is exact (DfI = 0).

    With W = U S V^T and Q a Haar rotation, `redraws="left"` replaces U alone, W <- scale * Q polar(W), and
    `redraws="right"` replaces V alone. With `left` a wide matrix keeps its row space, with `right` a tall one keeps its
    column space. A square matrix keeps nothing either way, because its polar factor U V^T only pairs U with V.

    The matrices are those of FIRE: a convolution has one for each kernel position, a fused projection one for each of
    its parts. What the layout re-initialises goes back to its initial values, as with FIRE, and the optimizer's state
    of the changed weights is reset. Biases, norms and all else stay.

    Args:
        layout: which weights are replaced, see `fire_core.weights.layout`; None takes the network's own layout.
        scale: modular, orthogonal, match_init, init_norm, keep_norm (of the weights that are replaced) or
            variance_factor; docs/scales.md.
        variance_factor: for the scale of that name; refused with another.
        trainable_only: leave frozen weights alone.
        redraws: which singular vectors are drawn anew: both, left (U) or right (V).
    """

    @checked
    def __init__(
        self,
        layout: ChosenLayout = None,
        scale: str = "modular",
        variance_factor: float = 1.0,
        trainable_only: bool = True,
        redraws: Redraws = "both",
    ) -> None:
        self.redraws: Redraws = redraws
        super().__init__(
            "exact", layout=layout, scale=scale, variance_factor=variance_factor, trainable_only=trainable_only
        )

    def check(self, net: Net) -> None:
        if not any(self._matrices(net, name) for name in net.modules):
            raise ValueError(f"layout={self.layout or net.layout} takes no matrix of it")

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        generator = context.own_draws()
        with net.unchanged_on_error():
            for name in net.modules:
                for entry in self._matrices(net, name, net.spared_or_shared(name, context.spared)):
                    randomise_(entry, generator, self.redraws, keep_norm=self.projection.scale == "keep_norm")
            projection_report = super().at_boundary(net, context)
        # FIRE's numbers compare with the Gaussian matrices, not with the trained ones; left out, the trainer measures.
        return BoundaryReport(measuring=projection_report.measuring)

    def _matrices(self, net: Net, name: str, spared: Sequence[nn.Parameter] = ()) -> list[Entry]:
        """Return the entries of one network whose matrices are drawn anew."""
        layout, trainable_only = self.layout or net.layout, self.trainable_only
        entries = resolve(net.modules[name], layout, exclude=spared, trainable_only=trainable_only)
        return [entry for entry in entries if entry.action == "project" and entry.parameter.numel()]


def randomise_(entry: Entry, generator: torch.Generator, redraws: Redraws, keep_norm: bool) -> None:
    """Fill the matrices of an entry with standard normal numbers, or multiply them by random rotations, in place.

    Args:
        entry: the `entry.count` matrices (d_out, d_in) of a weight.
        generator: a CPU generator.
        redraws: `both` fills with standard normal numbers; `left` and `right` multiply by a rotation from that side.
        keep_norm: give each matrix the Frobenius norm that it had.
    """
    weight = distributed.full(entry.parameter).clone()  # a clone, since the other rows of a fused weight stay
    old = stack([(entry, weight)])  # (count, d_out, d_in)
    d_out, d_in = {"both": (-2, -1), "left": (-2, -2), "right": (-1, -1)}[redraws]
    shape = (len(old), old.shape[d_out], old.shape[d_in])
    new = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(old)
    if redraws != "both":
        rotation = polar_factor(new)
        new = rotation @ old if redraws == "left" else old @ rotation
    if keep_norm:
        is_zero = (old == 0).all((-2, -1), keepdim=True)  # such a matrix keeps its norm of 0, as FIRE leaves it
        new = (new * (own_scale(old) / own_scale(new))).masked_fill(is_zero, 0)
    entry.write_(weight, new.to(weight.dtype))
    distributed.write_(entry.parameter, weight)
