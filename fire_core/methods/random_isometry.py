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

    W <- scale * polar(G), the entries of G being independent standard normal numbers. Rotating G changes nothing of its
    distribution and rotates the polar factor alike, so that this one has the Haar distribution: of all isometries of
    its shape none is likelier than another. The factor is exact (DfI = 0).

    With W = U S V^T, `redraws="left"` turns U alone, W <- scale * Q polar(W), and `redraws="right"` V alone, Q a Haar
    rotation. A wide matrix then keeps the space of its rows, or a tall one that of its columns; of a square one nothing
    is left either way, as its polar factor U V^T is no more than how U and V belong together.

    A matrix is what FIRE takes for one: a convolution has one for each kernel position, fused projections one for each
    of their parts. What the layout re-initialises goes back to its initial values, as with FIRE, and the optimizer
    forgets what it knows of the changed weights. Biases, norms and all else stay.

    Args:
        layout: which weights, see `fire_core.weights.layout`; None: the network's own.
        scale: modular, orthogonal, match_init, init_norm, keep_norm (of the weights that are replaced) or
            variance_factor; docs/scales.md.
        variance_factor: for the scale of that name; refused with another.
        trainable_only: leave frozen weights alone.
        redraws: both, left (U) or right (V).
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
        # The same draws for a trained network and for its target network, on which an agent lets the method act next.
        generator = torch.Generator().manual_seed(context.generator.initial_seed())
        for name in net.modules:
            for entry in self._matrices(net, name, net.left_alone(name, context.spared)):
                fill_(entry, generator, self.redraws, keep_norm=self.projection.scale == "keep_norm")
        projected = super().at_boundary(net, context)
        # What FIRE reports is of the Gaussians: the trainer measures.
        return BoundaryReport(measuring=projected.measuring)

    def _matrices(self, net: Net, name: str, spared: Sequence[nn.Parameter] = ()) -> list[Entry]:
        """What is drawn anew of one network."""
        layout, trainable_only = self.layout or net.layout, self.trainable_only
        entries = resolve(net.modules[name], layout, exclude=spared, trainable_only=trainable_only)
        return [entry for entry in entries if entry.action == "project" and entry.parameter.numel()]


def fill_(entry: Entry, generator: torch.Generator, redraws: Redraws, keep_norm: bool) -> None:
    """Fill the matrices of an entry with standard normal numbers, or rotate them at random.

    Args:
        entry: count matrices (d_out, d_in).
        generator: on the CPU.
        redraws: both: Gaussians; left, right: W is multiplied by a rotation from there.
        keep_norm: give each matrix the Frobenius norm that it had.
    """
    weight = distributed.full(entry.parameter).clone()  # of a fused weight other rows stay
    old = stack([(entry, weight)])  # (count, d_out, d_in)
    d_out, d_in = {"both": (-2, -1), "left": (-2, -2), "right": (-1, -1)}[redraws]
    shape = (len(old), old.shape[d_out], old.shape[d_in])
    new = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(old)
    if redraws != "both":
        rotation = polar_factor(new)
        new = rotation @ old if redraws == "left" else old @ rotation
    if keep_norm:
        new *= own_scale(old) / own_scale(new)
    entry.write_(weight, new.to(weight.dtype))
    distributed.write_(entry.parameter, weight)
