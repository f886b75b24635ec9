"""Plasticity of a network, logged at a boundary before and after the method acts."""

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fire_core import metrics
from fire_core.methods import Net
from fire_core.units.find import unit_graph
from fire_core.units.watch import Watch, mean_magnitude
from harness.config.errors import TrainingError

LEVELS = ("off", "cheap", "full")
THRESHOLD = 0.1  # of a dormant unit's score, as in the ReDo paper


def plasticity(net: Net, loss: Callable[[], Tensor], level: str = "cheap", ranks: bool = False) -> dict[str, float]:
    """Numbers of a network on a fixed probe batch, in evaluation mode; nothing in it changes.

    cheap: `stable_rank` of the features that the last linear layer reads, (probe, features); `dormant_ratio` of the
    hidden units (see `fire_core.units`). Where there is no such layer or unit, no such number.
    full: also `effective_rank` and `srank` of these features and `sharpness`, the Hessian's largest |eigenvalue|. Takes
    seconds for ResNet-18.
    Numbers of the weights alone (DfI, SFE, their stable rank) are `harness.training.boundary`'s.

    Args:
        net: the networks.
        loss: of the probe batch; each call passes it through the network.
        level: off, cheap or full.
        ranks: whether cheap has `effective_rank` and `srank` too.

    Raises:
        TrainingError: the features are not finite, as in a network that has diverged.
    """
    if level == "off":
        return {}
    numbers: dict[str, float] = {}
    layers = [m for root in net.modules.values() for m in root.modules() if isinstance(m, nn.Linear)]
    try:
        watch = Watch(unit_graph(net.modules), mean_magnitude, only_training=False)
    except ValueError:
        watch = Watch([], mean_magnitude)
    features: list[Tensor] = []
    with net.mode(training=False):
        with contextlib.ExitStack() as hooks, watch.on(), torch.no_grad():
            for layer in layers[-1:]:
                hook = layer.register_forward_pre_hook(lambda _, given: features.append(given[0].float()))
                hooks.callback(hook.remove)
            loss()
        if level == "full":
            numbers["sharpness"] = metrics.hessian_spectral_norm(
                loss, [p for p in net.parameters() if p.requires_grad], 20, generator=torch.Generator().manual_seed(0)
            )
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
