"""ReDo, recycling dormant neurons (Sokar, Agarwal, Castro and Evci, "The Dormant Neuron Phenomenon in Deep
Reinforcement Learning", ICML 2023, arXiv 2302.12902; public code: google/dopamine, `labs/redo/weight_recyclers.py`)."""

import functools
import itertools

import torch
from torch import Tensor

from fire_core.methods.fire_paper import OutputWatch, chains, rectified, recycle_rows_
from fire_core.methods.layers import check_units
from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.metrics import dormant
from fire_core.ranges import Count, NonNegative, checked
from fire_core.units.recycle import initial_draw, recycle_
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude


class ReDo(Method):
    """Every `every` epochs, recycle the units that are silent on the training data.

    The score of unit i of a layer is E|h_i| / mean_k E|h_k|; at most `threshold` is dormant. A dormant unit gets
    incoming weights from the layer's initial distribution, bias and outgoing weights of zero, and no history in the
    optimizer. h is the unit's activation as its consumers read it, after norm and nonlinearity; the model declares its
    units (`fire_core.units.graph`).

    `variant=fire_paper` does what the FIRE authors' code does: scores come from the last test images, before
    normalisation, layers are chained in execution order whatever the skips and heads, new weights and biases are
    uniform in +-1/sqrt(fan_in), outgoing weights and moments stay as they are, Adam's step counter of every touched
    weight restarts, and the last hidden layer is never recycled. Where a trainer has no test images (agents, language)
    training samples are used.

    Args:
        threshold: largest score of a dormant unit; with 0 only units that are exactly silent are recycled.
        every: epochs between two recyclings; in an agent rows of its log.
        samples: how many samples of the training data are measured (fire_paper: the last ones of the test data).
        variant: original or fire_paper.
    """

    FIELDS = ("epochs",)

    @checked
    def __init__(
        self,
        threshold: NonNegative = 0.1,
        every: Count = 1,
        samples: Count = 512,
        variant: Variant = "original",
    ) -> None:
        self.threshold, self.every, self.samples = threshold, every, samples
        self.variant, self.epochs = variant, 0

    def check(self, net: Net) -> None:
        if self.variant == "original":
            check_units(net)

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        self.epochs += 1
        if self.epochs % self.every:
            return {}
        if self.variant == "fire_paper":
            networks = chains(net.modules)
            watch = OutputWatch([*itertools.chain(*networks)], rectified, only_training=False)
            masks = self._dormant(net, context, watch)
            # The output layer has no units to recycle, and the authors' code leaves the last hidden layer alone.
            recycle_rows_(networks, masks, context, last_layers_kept=2)
        else:
            graph = unit_graph(net.modules)
            masks = self._dormant(net, context, Watch(graph, mean_magnitude, only_training=False))
            draw = initial_draw(net.modules, net.init)
            recycle_(zip(graph, masks, strict=True), draw, context.generator, context.optimizers)
        return {"dormant_ratio": torch.cat(masks).float().mean().item()}

    def idle_reason(self) -> str:
        return "" if self.epochs >= self.every else f"every={self.every} epochs, of which it has seen {self.epochs}"

    @torch.no_grad()
    def _dormant(self, net: Net, context: Context, watch: Watch | OutputWatch) -> list[Tensor]:
        """Return which units of each layer are dormant, (units,) bool, on `samples` samples in evaluation mode.

        Raises:
            ValueError: the context gives no batches or no loss, or there is no sample.
        """
        if context.batches is None or context.loss is None:
            raise ValueError("ReDo needs batches of the phase, which this trainer does not give")
        batches = context.batches
        if self.variant == "fire_paper" and context.last_tested is not None:
            batches = functools.partial(context.last_tested, self.samples)
        sums: list[Tensor] = []  # of |activation| over the samples, (units,) for each layer
        count = 0
        with net.mode(training=False), watch.on():
            for inputs, targets in batches():
                inputs, targets = inputs[: self.samples - count], targets[: self.samples - count]
                if not len(inputs):
                    continue
                context.loss(inputs, targets)  # called for its forward pass, which `watch` measures
                batch_sums = [mean * len(inputs) for mean in watch.read()]
                sums = [a + b for a, b in zip(sums, batch_sums, strict=True)] if sums else batch_sums
                count += len(inputs)
                if count >= self.samples:
                    break
        if not count:
            raise ValueError("ReDo needs batches of the phase, and there is no sample: the model is unchanged")
        return [dormant(layer_sums[None] / count, self.threshold) for layer_sums in sums]
