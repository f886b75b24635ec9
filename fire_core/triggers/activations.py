"""Triggers that look at activations: of the training's own passes, or of a fixed batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Net
from fire_core.metrics import dormant_ratio, effective_rank
from fire_core.ranges import Count, Share, checked
from fire_core.triggers.measured import Measured, Steps
from fire_core.units.graph import Units
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, is_trained, mean_magnitude
from fire_core.weights.topology import unwrap

SAMPLES = 256
Read = Callable[[], Tensor | None]  # the number of the pass that was seen; None if there was none


class ActivationTrigger(Measured):
    """Measures what passes through the model.

    When a measurement is due, hooks go onto the model, see the next training pass, and are taken off at the next `ask`:
    no further pass, no hooks in between. With a `probe` (see `start`) that batch is passed through the model instead.
    """

    missing = (
        "no training pass was seen since the hooks are on. A model that torch.compile compiled does not run them: "
        "call start(model, probe=...) with a pass of the model before compilation"
    )
    most = 1.0  # shares
    _hooks: ExitStack | None = None
    _net: Net | None = None
    _probe: Callable[[], object] | None = None
    _read: Read

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        super().prepare(net, metrics, probe)
        assert net is not None
        self._net, self._probe = net, probe or self._probe
        with self.watch(net, only_training=True):  # refuses a model that has nothing to watch
            pass
        self._go_on()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._go_on()

    def _go_on(self) -> None:
        """On a resume between the step at which a measurement was due and the one that is to be seen."""
        if self.due and self._net is not None and self._probe is None and self._hooks is None:
            self._put_on(self._net)

    def _put_on(self, net: Net) -> None:
        # A model that is trained in evaluation mode is seen in it.
        only_training = any(root.training for root in net.modules.values())
        self._hooks = ExitStack()
        self._read = self._hooks.enter_context(self.watch(net, only_training))

    def measure(self, net: Net) -> Tensor | None:
        if self._probe is not None:
            with net.mode(training=False), torch.no_grad(), self.watch(net, only_training=False) as read:
                self._probe()
                return read()
        if self._hooks is None:
            self._put_on(net)
            return None
        measured = self._read()
        if measured is not None:
            self._hooks.close()
            self._hooks = None
        return measured

    def watch(self, net: Net, only_training: bool) -> AbstractContextManager[Read]:
        """Hooks on the model as long as the context is open; it gives what reads the number.

        Raises:
            ValueError: the model has nothing to watch.
        """
        raise NotImplementedError


class Dormancy(ActivationTrigger):
    """The share of dormant units (Sokar et al., ICML 2023) in one training batch, over all hidden layers.

    Args:
        above: threshold of the share, in [0, 1].
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
        threshold: of a dormant unit's score: its mean |activation| divided by the layer's mean.
    """

    name = "dormancy"

    @checked
    def __init__(
        self,
        above: Share,
        every: Count = 100,
        rearm: Share | None = None,
        cooldown: Steps = 0,
        threshold: Share = 0.1,
    ) -> None:
        super().__init__(above, None, every, rearm, cooldown)
        self.dormant = threshold
        self._graph: tuple[list[nn.Module], list[Units]] | None = None

    @contextmanager
    def watch(self, net: Net, only_training: bool) -> Iterator[Read]:
        modules = [m for root in net.modules.values() for m in root.modules()]
        if self._graph is None or self._graph[0] != modules:
            self._graph = modules, unit_graph(net.modules)
        watch = Watch(self._graph[1], mean_magnitude, only_training)

        def read() -> Tensor | None:
            if not watch.samples:
                return None
            means = [layer[None] for layer in watch.read(unused=True)]  # (1, units): of |activation| over the batch
            return torch.tensor(dormant_ratio(means, self.dormant), dtype=torch.float32, device=means[0].device)

        with watch.on():
            yield read


class EffectiveRank(ActivationTrigger):
    """The effective rank (Roy and Vetterli, EUSIPCO 2007) of the features that the last linear layer in use reads.

    It is given as a share of the largest that is possible, min(samples, features), and averaged over the networks. At
    most 256 samples of a batch are taken, evenly spaced.

    Args:
        below: threshold of the share, in [0, 1].
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
    """

    name = "effective_rank"

    @checked
    def __init__(self, below: Share, every: Count = 100, rearm: Share | None = None, cooldown: Steps = 0) -> None:
        super().__init__(None, below, every, rearm, cooldown)

    @contextmanager
    def watch(self, net: Net, only_training: bool) -> Iterator[Read]:
        linear = [[m for m in unwrap(root).modules() if isinstance(m, nn.Linear)] for root in net.modules.values()]
        if not any(linear):
            raise ValueError("EffectiveRank: the model has no linear layer, whose inputs would be its features")
        features: dict[nn.Module, Tensor] = {}

        def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            if given and given[0].ndim > 1 and (is_trained(layer) or not only_training):
                rows = given[0].detach().flatten(0, -2)
                features[layer] = rows[:: -(-len(rows) // SAMPLES)].float()  # (samples, features)

        def read() -> Tensor | None:
            last = [[features[layer] for layer in layers if layer in features][-1:] for layers in linear]
            shares = [effective_rank(rows) / min(rows.shape) for group in last for rows in group]
            return torch.stack(shares).mean() if shares else None

        with ExitStack() as hooks:
            for layer in {layer for layers in linear for layer in layers}:  # the last one may be a spare
                hooks.callback(layer.register_forward_pre_hook(look).remove)
            yield read
