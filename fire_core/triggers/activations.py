"""Triggers that look at activations: of the training's own passes, or of a fixed batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fire_core import metrics as measures
from fire_core.methods.protocol import Net
from fire_core.ranges import Count, Share
from fire_core.triggers.measured import Measured, Steps
from fire_core.units.find import unit_graph
from fire_core.units.graph import Units
from fire_core.units.watch import Watch, mean_magnitude
from fire_core.weights.topology import unwrap

SAMPLES = 256


class Seen(Measured):
    """Measures what passes through the model.

    When a measurement is due, hooks go onto the model, see the next training pass, and are taken off at the next `ask`:
    no further pass, no hooks in between. With a `probe` (see `start`) that batch is passed through the model instead.
    """

    missing = (
        "no training pass was seen since the hooks are on. A model that torch.compile compiled does not run them: "
        "call start(model, probe=...) with a pass of the model before compilation"
    )

    def __init__(
        self, above: float | None, below: float | None, every: int, rearm: float | None, cooldown: int
    ) -> None:
        super().__init__(above, below, every, rearm, cooldown)
        self._hooks: contextlib.ExitStack | None = None
        self._net: Net | None = None
        self._probe: Callable[[], object] | None = None

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        super().prepare(net, metrics, probe)
        assert net is not None
        self._net, self._probe = net, probe or self._probe
        self.find(net)
        self._continue()

    def earliest(self, after: int = 0) -> float:
        # Without a probe it is the pass after the step at which a measurement is due that is seen.
        return super().earliest(after) + (self._probe is None)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._continue()

    def _continue(self) -> None:
        """On a resume between the step at which a measurement was due and the one that is to be seen."""
        if self.due and self._net is not None and self._probe is None and self._hooks is None:
            self._hooks = self._put_on(self._net, only_training=True)

    def _put_on(self, net: Net, only_training: bool) -> contextlib.ExitStack:
        hooks = contextlib.ExitStack()
        # A model that is trained in evaluation mode is seen in it.
        self.watch(net, hooks, only_training and any(root.training for root in net.modules.values()))
        return hooks

    def measure(self, net: Net) -> Tensor | None:
        if self._probe is not None:
            with net.mode(training=False), torch.no_grad(), self._put_on(net, only_training=False):
                self._probe()
                return self.read()
        if self._hooks is None:
            self._hooks = self._put_on(net, only_training=True)
            return None
        measured = self.read()
        if measured is not None:
            self._hooks.close()
            self._hooks = None
        return measured

    def find(self, net: Net) -> None:
        """Look for what is to be watched.

        Raises:
            ValueError: the model has no such thing.
        """
        raise NotImplementedError

    def watch(self, net: Net, hooks: contextlib.ExitStack, only_training: bool) -> None:
        """Put hooks on the model."""
        raise NotImplementedError

    def read(self) -> Tensor | None:
        """The number of the pass that was seen; None if there was none."""
        raise NotImplementedError


class Dormancy(Seen):
    """The share of dormant units (Sokar et al., ICML 2023) in one training batch, over all hidden layers.

    Args:
        above: threshold of the share, in [0, 1].
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
        threshold: of a dormant unit's score: its mean |activation| divided by the layer's mean.
    """

    name = "dormancy"
    SPAN = (0.0, 1.0)

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
        self._watch: Watch | None = None

    def find(self, net: Net) -> None:
        modules = [m for root in net.modules.values() for m in root.modules()]
        if self._graph is None or self._graph[0] != modules:
            self._graph = modules, unit_graph(net.modules)

    def watch(self, net: Net, hooks: contextlib.ExitStack, only_training: bool) -> None:
        self.find(net)
        assert self._graph is not None
        self._watch = Watch(self._graph[1], mean_magnitude, only_training)
        hooks.enter_context(self._watch.on())

    def read(self) -> Tensor | None:
        assert self._watch is not None
        if not self._watch.samples:
            return None
        means = [layer[None] for layer in self._watch.read()]  # (1, units): of |activation| over the batch
        return torch.tensor(measures.dormant_ratio(means, self.dormant), device=means[0].device)


class EffectiveRank(Seen):
    """The effective rank (Roy and Vetterli, EUSIPCO 2007) of the features that the last linear layer reads.

    It is given as a share of the largest that is possible, min(samples, features), and averaged over the networks. At
    most 256 samples of a batch are taken, evenly spaced.

    Args:
        below: threshold of the share, in [0, 1].
        every: steps between two measurements.
        rearm: see `Measured`.
        cooldown: steps after an action in which it does not fire.
    """

    name = "effective_rank"
    SPAN = (0.0, 1.0)

    def __init__(self, below: Share, every: Count = 100, rearm: Share | None = None, cooldown: Steps = 0) -> None:
        super().__init__(None, below, every, rearm, cooldown)
        self._features: dict[nn.Module, Tensor] = {}

    def find(self, net: Net) -> None:
        if not self._layers(net):
            raise ValueError("EffectiveRank: the model has no linear layer, whose inputs would be its features")

    @staticmethod
    def _layers(net: Net) -> list[nn.Module]:
        """The last linear layer of each network."""
        roots = [unwrap(root) for root in net.modules.values()]
        return [found[-1] for root in roots if (found := [m for m in root.modules() if isinstance(m, nn.Linear)])]

    def watch(self, net: Net, hooks: contextlib.ExitStack, only_training: bool) -> None:
        self._features = {}

        def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            if layer.training or not only_training:
                rows = given[0].detach().flatten(0, -2)
                self._features[layer] = rows[:: -(-len(rows) // SAMPLES)].float()  # (samples, features)

        for layer in self._layers(net):
            hooks.callback(layer.register_forward_pre_hook(look).remove)

    def read(self) -> Tensor | None:
        if not self._features:
            return None
        shares = [measures.effective_rank(rows) / min(rows.shape) for rows in self._features.values()]
        self._features = {}
        return torch.stack(shares).mean()
