"""Triggers that measure activations, either in passes of training or on a fixed batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Net
from fire_core.metrics import dormant_ratio, effective_rank
from fire_core.ranges import Count, Share, checked, within
from fire_core.triggers.measured import Measured, Steps
from fire_core.units.graph import Units
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, is_trained, mean_magnitude
from fire_core.weights.topology import unwrap

SAMPLES = 256  # of a batch, whose features are kept for an effective rank
Read = Callable[[], Tensor | None]  # returns the number of the last measured pass; None if there was no pass


class ActivationTrigger(Measured):
    """Base class of triggers whose number comes from activations.

    When a measurement is due, hooks are registered on the model, measure the next training pass, and are removed at the
    next `ask`. So no pass is added, and between measurements the model has no hooks. With a `probe` (see `start`) the
    probe's batch is passed through the model instead. A batch without samples, or with activations that are not finite
    (of a step that a gradient scaler skips, for example), gives NaN, at which no trigger fires.
    """

    missing = (
        "no training pass was seen since the hooks are on. A model that torch.compile compiled does not run them: "
        "call start(model, probe=...) with a pass of the model before compilation"
    )
    upper_bound = 1.0  # the numbers are shares
    _hooks: ExitStack | None = None
    _net: Net | None = None
    _probe: Callable[[], object] | None = None
    _read: Read

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        super().prepare(net, metrics, probe)
        assert net is not None
        self._net, self._probe = net, probe or self._probe
        with self.watch(net, only_training=True):  # raises for a model that has nothing to watch
            pass
        self._restore_hooks()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._restore_hooks()

    def _restore_hooks(self) -> None:
        """Register the hooks again if the run was resumed while a measurement was due."""
        if self.due and self._net is not None and self._probe is None and self._hooks is None:
            self._register_hooks(self._net)

    def _register_hooks(self, net: Net) -> None:
        """Register the hooks that watch the next passes of the run itself, from which `_read` reads the number."""
        # If all networks are in evaluation mode, they are trained in it, and passes in that mode are measured.
        only_training = any(root.training for root in net.modules.values())
        self._hooks = ExitStack()
        self._read = self._hooks.enter_context(self.watch(net, only_training))

    def close(self) -> None:
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None

    def measure(self, net: Net) -> Tensor | None:
        if self._probe is not None:
            with net.mode(training=False), torch.no_grad(), self.watch(net, only_training=False) as read:
                self._probe()
                return read()
        if self._hooks is None:
            self._register_hooks(net)
            return None
        measured = self._read()
        if measured is not None:
            self._hooks.close()
            self._hooks = None
        return measured

    def watch(self, net: Net, only_training: bool) -> AbstractContextManager[Read]:
        """Return a context within which hooks measure the passes of the model; its value is a function that reads.

        Args:
            net: the networks.
            only_training: ignore passes in evaluation mode.

        Raises:
            ValueError: the model has nothing to watch.
        """
        raise NotImplementedError


class Dormancy(ActivationTrigger):
    """Fires when the share of dormant units in one training batch, over all hidden layers, passes a threshold.

    Dormant units are those of Sokar et al., ICML 2023.

    Args:
        above: the trigger fires above this share, in [0, 1).
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
        threshold: largest score of a dormant unit; the score is its mean |activation| divided by the layer's mean.
    """

    name = "dormancy"

    @checked
    def __init__(
        self,
        above: Annotated[float, within(0, 1, open_high=True)],  # no share is above 1
        every: Count = 100,
        rearm: Share | None = None,
        cooldown: Steps = 0,
        threshold: Share = 0.1,
    ) -> None:
        super().__init__(above, None, every, rearm, cooldown)
        self.dormant_threshold = threshold
        self._graph: tuple[list[nn.Module], list[Units]] | None = None  # all modules, and the units found in them

    @contextmanager
    def watch(self, net: Net, only_training: bool) -> Iterator[Read]:
        modules = [m for root in net.modules.values() for m in root.modules()]
        if self._graph is None or self._graph[0] != modules:
            self._graph = modules, unit_graph(net.modules)
        watch = Watch(self._graph[1], mean_magnitude, only_training)

        def read() -> Tensor | None:
            if not watch.saw_pass:
                return None
            if not watch.samples:
                return torch.tensor(torch.nan)
            means = [layer[None] for layer in watch.read(skip_unused=True)]  # (1, units) mean |activation| each
            ratio = torch.tensor(
                dormant_ratio(means, self.dormant_threshold), dtype=torch.float32, device=means[0].device
            )
            return torch.where(torch.cat(means, 1).isfinite().all(), ratio, torch.nan)

        with watch.on():
            yield read


class EffectiveRank(ActivationTrigger):
    """Fires when the effective rank of the features that the last linear layer reads falls below a threshold.

    The effective rank (Roy and Vetterli, EUSIPCO 2007) is divided by the largest that is possible, min(samples,
    features), and averaged over the networks. At most 256 samples, or positions of sequences, of a batch are taken. The
    last layer is the one that is registered last.

    Args:
        below: the trigger fires below this share of the largest rank, in (0, 1].
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
    """

    name = "effective_rank"

    @checked
    def __init__(
        self,
        below: Annotated[float, within(0, 1, open_low=True)],  # no rank is below 0
        every: Count = 100,
        rearm: Share | None = None,
        cooldown: Steps = 0,
    ) -> None:
        super().__init__(None, below, every, rearm, cooldown)

    @contextmanager
    def watch(self, net: Net, only_training: bool) -> Iterator[Read]:
        linear_layers = [  # of each network
            [module for module in unwrap(root).modules() if isinstance(module, nn.Linear)]
            for root in net.modules.values()
        ]
        if not any(linear_layers):
            raise ValueError("EffectiveRank: the model has no linear layer, whose inputs would be its features")
        features: dict[nn.Module, Tensor] = {}
        own_layers = {layer for layers in linear_layers for layer in layers}

        def store_features(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if layer not in own_layers:  # a copy of the model, whose layers have this hook as well
                return
            if inputs and inputs[0].ndim > 1 and (is_trained(layer) or not only_training):
                features[layer] = sampled_rows(inputs[0].detach()).float()  # (samples, features)

        def read() -> Tensor | None:
            shares = []
            for layers in linear_layers:
                used = [layer for layer in layers if layer in features]
                if used:
                    last = features[used[-1]]
                    share = effective_rank(last.nan_to_num(0, 0, 0)) / max(1, min(last.shape))
                    is_known = last.isfinite().all() if last.numel() else torch.tensor(data=False, device=last.device)
                    shares.append(torch.where(is_known, share, torch.nan))
            return torch.stack(shares).mean() if shares else None

        with ExitStack() as hooks:
            # All layers are watched, because the last one registered may not be used by the forward pass.
            for layer in own_layers:
                hooks.callback(layer.register_forward_pre_hook(store_features).remove)
            yield read


def sampled_rows(inputs: Tensor) -> Tensor:
    """Return at most `SAMPLES` rows of a layer's inputs (..., features), the same at each call.

    Of samples (n, features) they are evenly spaced. Of sequences (n, positions, features) they are drawn: an even
    distance may divide the number of positions, so that all rows would be of one position.
    """
    rows = inputs.flatten(0, -2)
    if inputs.ndim == 2 or len(rows) <= SAMPLES:
        return rows[:: max(1, -(-len(rows) // SAMPLES))]
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:SAMPLES]
    return rows[drawn.to(rows.device)]
