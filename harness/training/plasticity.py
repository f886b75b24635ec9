"""Measures of a network's plasticity, logged at a boundary before and after the method acts."""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fire_core import metrics
from fire_core.methods import Net
from fire_core.units.graph import Units, weight
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude
from harness.config.errors import Diverged
from harness.training.uncompiled import uncompiled

LEVELS = ("off", "weights", "cheap", "full")
MAX_WEIGHTS_FOR_CHEAP = 1_000_000  # in larger networks a pass over the probe batch takes longer than FIRE's act
DORMANT_THRESHOLD = 0.1  # a unit with a lower score is dormant, as in the ReDo paper


def resolve_level(level: str, network: nn.Module) -> str:
    """Return the level that `metrics=auto` means for a network: measuring must not take longer than the act itself.

    Levels other than auto are returned as they are.
    """
    if level != "auto":
        return level
    return "cheap" if sum(p.numel() for p in network.parameters()) <= MAX_WEIGHTS_FOR_CHEAP else "weights"


@uncompiled
def plasticity(net: Net, loss: Callable[[], Tensor], level: str = "cheap", ranks: bool = False) -> dict[str, float]:
    """Measure a network on a fixed probe batch, in evaluation mode, not compiled; the network does not change.

    The numbers of each level:

    - off, weights: none, and the batch is not passed. `harness.training.boundary` measures the weights (DfI, SFE).
    - cheap: `stable_rank` of the last linear layer's input features, (probe, features), and the `dormant_ratio` of the
      hidden units (see `fire_core.units`). A network without such a layer or unit lacks the number.
    - full: also `effective_rank` and `srank` of these features; `output_scale`, the root mean square of that layer's
      output; the mean `alignment` of successive linear layers (`fire_core.metrics`); and `sharpness`, the Hessian's
      largest |eigenvalue|. This takes seconds for ResNet-18.

    Args:
        net: the networks.
        loss: passes the probe batch through the network and returns its loss.
        level: one of `LEVELS`.
        ranks: whether level cheap includes `effective_rank` and `srank`.

    Raises:
        Diverged: the features are not finite, as in a network that has diverged.
    """
    if level in ("off", "weights"):
        return {}
    numbers: dict[str, float] = {}
    layers = [m for root in net.modules.values() for m in root.modules() if isinstance(m, nn.Linear)]
    try:
        watch = Watch(unit_graph(net.modules), mean_magnitude, only_training=False)
    except ValueError:
        watch = Watch([], mean_magnitude)
    features: list[Tensor] = []
    outputs: list[Tensor] = []
    with net.mode(training=False):
        with contextlib.ExitStack() as hooks, watch.on(), torch.no_grad():
            for layer in layers[-1:]:
                hook = layer.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].float()))
                hooks.callback(hook.remove)
                hook = layer.register_forward_hook(lambda _, inputs, output: outputs.append(output.float()))
                hooks.callback(hook.remove)
            loss()
        if level == "full":
            trained = [p for p in net.parameters() if p.requires_grad]
            generator = torch.Generator(trained[0].device).manual_seed(0) if trained else None
            numbers["sharpness"] = metrics.hessian_spectral_norm(loss, trained, 20, generator=generator)
            for output in outputs:
                numbers["output_scale"] = output.square().mean().sqrt().item()
            alignments = [metrics.alignment(second, first).item() for first, second in successive_layers(watch.graph)]
            if alignments:
                numbers["alignment"] = sum(alignments) / len(alignments)
    for x in features:
        probe_features = x.flatten(0, -2)  # (probe, features)
        if not torch.isfinite(probe_features).all():
            raise Diverged("the activations of the last hidden layer are not finite. Lower lr=")
        numbers["stable_rank"] = metrics.stable_rank(probe_features).item()
        if level == "full" or ranks:
            numbers["effective_rank"] = metrics.effective_rank(probe_features).item()
            numbers["srank"] = float(metrics.srank(probe_features))
    if watch.graph:
        means = [layer[None] for layer in watch.read()]  # (1, units): mean |activation| over the probe batch
        if not all(layer.isfinite().all() for layer in means):
            raise Diverged("the activations of a hidden layer are not finite. Lower lr=")
        numbers["dormant_ratio"] = metrics.dormant_ratio(means, DORMANT_THRESHOLD)
    return numbers


def successive_layers(graph: Sequence[Units]) -> list[tuple[Tensor, Tensor]]:
    """Return the weights of pairs of linear layers where each input of the second is one unit of the first.

    Their shapes are (units, d_in) and (d_out, units).
    """
    pairs = []
    for units in graph:
        for producer in units.producers:
            for consumer in units.consumers:
                first, second = weight(producer.layer).detach(), weight(consumer.layer).detach()
                if first.ndim == second.ndim == 2 and consumer.columns is None:
                    pairs.append((first[producer.start : producer.start + units.count], second))
    return pairs
