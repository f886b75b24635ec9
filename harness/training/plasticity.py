"""Plasticity of a network, logged at a boundary before and after the method acts."""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fire_core import metrics
from fire_core.methods import Net
from fire_core.units.graph import Units, weight
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude
from harness.config.errors import TrainingError

LEVELS = ("off", "weights", "cheap", "full")
SMALL = 1_000_000  # weights of a network; beyond, a pass over a probe takes longer than FIRE's act
THRESHOLD = 0.1  # of a dormant unit's score, as in the ReDo paper


def settled(level: str, network: nn.Module) -> str:
    """What `metrics=auto` is for a network, so that what is measured at a boundary costs no more than the act."""
    if level != "auto":
        return level
    return "cheap" if sum(p.numel() for p in network.parameters()) <= SMALL else "weights"


def plasticity(net: Net, loss: Callable[[], Tensor], level: str = "cheap", ranks: bool = False) -> dict[str, float]:
    """Numbers of a network on a fixed probe batch, in evaluation mode; nothing in it changes.

    off, weights: none, and no pass.
    cheap: `stable_rank` of the features that the last linear layer reads, (probe, features); `dormant_ratio` of the
    hidden units (see `fire_core.units`). Where there is no such layer or unit, no such number.
    full: also `effective_rank` and `srank` of these features, `output_scale`, the root mean square of what that layer
    gives, `alignment` of neighbouring linear layers (`fire_core.metrics`), and `sharpness`, the Hessian's largest
    |eigenvalue|. Takes seconds for ResNet-18.
    Numbers of the weights alone (DfI, SFE, their stable rank) are `harness.training.boundary`'s.

    Args:
        net: the networks.
        loss: of the probe batch; each call passes it through the network.
        level: one of `LEVELS`.
        ranks: whether cheap has `effective_rank` and `srank` too.

    Raises:
        TrainingError: the features are not finite, as in a network that has diverged.
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
                hook = layer.register_forward_pre_hook(lambda _, given: features.append(given[0].float()))
                hooks.callback(hook.remove)
                hook = layer.register_forward_hook(lambda _, given, gives: outputs.append(gives.float()))
                hooks.callback(hook.remove)
            loss()
        if level == "full":
            numbers["sharpness"] = metrics.hessian_spectral_norm(
                loss, [p for p in net.parameters() if p.requires_grad], 20, generator=torch.Generator().manual_seed(0)
            )
            for given in outputs:
                numbers["output_scale"] = given.square().mean().sqrt().item()
            pairs = [metrics.alignment(reader, writer).item() for writer, reader in neighbours(watch.graph)]
            numbers |= {"alignment": sum(pairs) / len(pairs)} if pairs else {}
    for seen in [x.flatten(0, -2) for x in features]:  # (probe, features)
        if not torch.isfinite(seen).all():
            raise TrainingError("the activations of the last hidden layer are not finite. Lower lr=")
        numbers["stable_rank"] = metrics.stable_rank(seen).item()
        if level == "full" or ranks:
            numbers["effective_rank"] = metrics.effective_rank(seen).item()
            numbers["srank"] = float(metrics.srank(seen))
    if watch.graph:
        means = [layer[None] for layer in watch.read()]  # (1, units): of |activation| over the probe batch
        numbers["dormant_ratio"] = metrics.dormant_ratio(means, THRESHOLD)
    return numbers


def neighbours(graph: Sequence[Units]) -> list[tuple[Tensor, Tensor]]:
    """The weights of linear layers of which the second reads the units of the first, each by one input."""
    return [
        (weight(writer.layer).detach()[writer.start : writer.start + units.count], weight(reader.layer).detach())
        for units in graph
        for writer in units.producers
        for reader in units.consumers
        if weight(writer.layer).ndim == weight(reader.layer).ndim == 2 and reader.columns is None
    ]
