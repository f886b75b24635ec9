"""ReDo, recycling dormant neurons (Sokar, Agarwal, Castro and Evci, "The Dormant Neuron Phenomenon in Deep
Reinforcement Learning", ICML 2023, arXiv 2302.12902)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fire_core.methods.fire_paper import chain
from fire_core.methods.protocol import Context, Method, Net
from fire_core.methods.variants import check_variant
from fire_core.units.find import unit_graph
from fire_core.units.recycle import recycle_masked_, uniform
from fire_core.units.watch import Watch, mean_magnitude


class ReDo(Method):
    """Every `every` epochs, recycle the units that are silent on the training data.

    The score of unit i of a layer is E|h_i| / mean_k E|h_k|; at most `threshold` is dormant. A dormant unit gets new
    incoming weights, outgoing weights of zero, and no history in the optimizer. h is what the unit's readers see,
    after norm and nonlinearity, through the units that the model declares (`fire_core.units.graph`).

    `variant=fire_paper` does what the authors' code does, which differs from the cited paper: scores are taken before
    normalisation, layers are chained in execution order whatever the skips and heads, outgoing weights and moments
    stay as they are, Adam's step counter of every touched weight restarts, and the last hidden layer is never
    recycled. Its scores come from test images; ours from training images in both variants.

    Args:
        threshold: of the score; 0: only units that are exactly silent.
        every: epochs between two times.
        samples: training samples that are looked at.
        recycle: False only measures (`method/dormant_ratio` in the log).
        variant: original or fire_paper.

    Raises:
        ValueError: an option is out of its range, or the network has no units that are known.
    """

    acts_within_phases = True

    def __init__(
        self,
        threshold: float = 0.1,
        every: int = 1,
        samples: int = 512,
        recycle: bool = True,
        variant: str = "original",
    ) -> None:
        for name, value, least in (("threshold", threshold, 0), ("every", every, 1), ("samples", samples, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        check_variant(variant)
        self.threshold, self.every, self.samples = threshold, every, samples
        self.recycle, self.variant, self.epochs = recycle, variant, 0

    def check(self, net: Net) -> None:
        if self.variant != "fire_paper":
            unit_graph(net.modules, say=True)

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        self.epochs += 1
        if self.epochs % self.every:
            return {}
        reference = chain(net.modules) if self.variant == "fire_paper" else None
        graph = unit_graph(net.modules) if reference is None else []
        watch = Watch(graph, mean_magnitude, only_training=False) if reference is None else reference.watch_redo()
        masks = [dormant(activity, self.threshold) for activity in self._look(net, context, watch)]
        if self.recycle and reference is not None:
            reference.recycle_(masks[:-1], context)
        elif self.recycle:
            recycle_masked_(graph, masks, uniform, context.generator, context.optimizers, draw_bias=True)
        return {"dormant_ratio": torch.cat(masks).float().mean().item()}

    @torch.no_grad()
    def _look(self, net: Net, context: Context, watch: Any) -> Sequence[Tensor]:
        """Mean |activation| of every unit over the first `samples` training samples, in evaluation mode."""
        if context.batches is None or context.loss is None:
            raise ValueError("ReDo needs batches of the phase, which this trainer does not give")
        total: list[Tensor] = []
        seen = 0
        with net.mode(training=False), watch.on():
            for inputs, targets in context.batches():
                inputs, targets = inputs[: self.samples - seen], targets[: self.samples - seen]
                context.loss(inputs, targets)
                part = [activity * len(inputs) for activity in watch.read()]
                total = [a + b for a, b in zip(total, part, strict=True)] if total else part
                seen += len(inputs)
                if seen >= self.samples:
                    break
        return [activity / seen for activity in total]

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


def dormant(activity: Tensor, threshold: float) -> Tensor:
    """Which units of a layer are dormant, from their mean |activation|, (units,)."""
    score = activity / (activity.mean() + 1e-9)
    return score.abs() <= 1e-8 if threshold == 0 else score <= threshold
