"""Action-value networks of DQN (Mnih et al., "Human-level control through deep reinforcement learning", 2015)."""

from collections import OrderedDict
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fire_core.activations import Activation, activation_of, units_of
from fire_core.methods.pi import Injected
from fire_core.ranges import Count, Width, checked, within
from fire_core.units.graph import Consumer, Producer, Units, between


class ToFloat(nn.Module):
    """Convert integers or truth values to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class QNetwork(nn.Module):
    """Base class of the networks: an encoder, and a head of two linear layers that plasticity injection can replace.

    Args:
        before: modules of the encoder before its first layer, by name.
        layers: layers of the encoder, by name.
        observation: shape of an observation.
        hidden: units of the head's first layer.
        actions: number of actions.
        norm: whether there is a layer norm before each activation; that of a convolution is over its whole map.
        activation: relu, crelu (the next layer reads twice as many features) or fourier (half as many units).

    Attributes:
        injectable: names of the submodules that plasticity injection replaces (see `fire_core.methods.pi`).
        copies: features that the activation makes of each unit.
    """

    injectable = ("head",)

    def __init__(
        self,
        before: dict[str, nn.Module],
        layers: dict[str, nn.Conv2d | nn.Linear],
        observation: tuple[int, ...],
        hidden: int,
        actions: int,
        norm: bool,
        activation: Activation,
    ) -> None:
        super().__init__()
        self.copies = activation_of(activation)[1]
        parts = dict(before)
        for name, layer in layers.items():
            units = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features
            parts |= {name: layer, **nonlinear(name[-1], units, norm, activation)}
        self.encoder = nn.Sequential(OrderedDict(**parts, features=nn.Flatten()))
        with torch.no_grad():
            features = self.encoder(torch.zeros(1, *observation)).shape[1]
        units = units_of(activation, hidden)
        first, last = nn.Linear(features, units), nn.Linear(units * self.copies, actions)
        self.head: nn.Module = nn.Sequential(OrderedDict(fc1=first, **nonlinear("", units, norm, activation), fc2=last))
        xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the values of all actions, (N, actions), for observations (N, ...)."""
        values: Tensor = self.head(self.encoder(x))
        return values

    def unit_graph(self) -> list[Units]:
        """Return the hidden units (`fire_core.units.graph`): each layer is read by the next, the last by every head."""
        heads = heads_of(self.head)
        layers = [m for m in self.encoder if isinstance(m, (nn.Conv2d, nn.Linear))]
        names = [name for name, m in self.encoder.named_children() if m in layers]
        norms = norms_of(self.encoder, len(layers))
        graph = []
        for name, layer, reader, norm in zip(names, layers, layers[1:], norms, strict=False):
            graph.append(between(name, layer, reader, norm, self.copies))
        if layers:
            last = between(names[-1], layers[-1], heads[0][0], norms[-1], self.copies)
            columns = last.consumers[0].columns
            readers = tuple(Consumer(head[0], columns, probed=head is heads[0]) for head in heads)
            graph.append(Units(last.name, last.count, (Producer(layers[-1]),), readers, last.norms))
        trained_head = heads[0]
        norm = norms_of(trained_head, 1)[0]
        return [*graph, between("fc1", trained_head[0], trained_head[-1], norm, self.copies)]


class NatureCNN(QNetwork):
    """The convolutional network of the Nature paper: (N, 4, 84, 84) bytes -> (N, actions) action values.

    Xavier-uniform weights and zero biases, as in the FIRE paper's code.

    Args:
        actions: number of actions.
        observation: shape of an observation, (4, 84, 84).
        width: multiplies every hidden size; 1 is the paper's 32, 64, 64 channels and 512 units.
        norm: see `QNetwork`.
        activation: see `QNetwork`.

    Raises:
        ValueError: `width` leaves a layer without a unit, the observations are not images, or `activation` is unknown.
    """

    @checked
    def __init__(
        self,
        actions: Count,
        observation: tuple[int, ...] = (4, 84, 84),
        width: Annotated[float, within(0, 1000, open_low=True)] = 1.0,
        norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        if len(observation) != 3:
            raise ValueError(f"nature_cnn needs images, got observations of shape {tuple(observation)}")
        *channels, hidden = (round(size * width) for size in (32, 64, 64, 512))
        if channels[0] < 1:
            raise ValueError(f"width must be at least 1/32, got {width}")
        copies = activation_of(activation)[1]
        a, b, c = (units_of(activation, size) for size in channels)
        layers: dict[str, nn.Conv2d | nn.Linear] = {
            "conv1": nn.Conv2d(observation[0], a, 8, stride=4),
            "conv2": nn.Conv2d(a * copies, b, 4, stride=2),
            "conv3": nn.Conv2d(b * copies, c, 3),
        }
        super().__init__({}, layers, observation, hidden, actions, norm, activation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the values of all actions, (N, actions), for stacked frames (N, 4, 84, 84) in 0 ... 255."""
        # Bytes are laid out channels-last before they become floats: otherwise that takes a third of a small network's
        # time on a CPU.
        x = x.contiguous(memory_format=torch.channels_last).to(torch.float32, copy=True).div_(255)
        values: Tensor = self.head(self.encoder(x))
        return values


class MinAtarCNN(QNetwork):
    """A convolutional network for small images: (N, stack, channels, 10, 10) truth values -> (N, actions).

    One layer of 3x3 filters and one of units, as the authors of MinAtar have it (Young and Tian, arXiv 1903.03176).

    Args:
        actions: number of actions.
        observation: shape of an observation.
        filters: filters of the convolution.
        hidden: units of the layer behind it.
        norm: see `QNetwork`.
        activation: see `QNetwork`.

    Raises:
        ValueError: the observations are of another kind, or `activation` is unknown.
    """

    @checked
    def __init__(
        self,
        actions: Count,
        observation: tuple[int, ...] = (1, 4, 10, 10),
        filters: Width = 16,
        hidden: Width = 128,
        norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        if len(observation) != 4 or min(observation[2:]) < 3:
            raise ValueError(f"minatar_cnn needs small images of channels, got observations of shape {observation}")
        conv = nn.Conv2d(observation[0] * observation[1], units_of(activation, filters), 3)
        before = {"planes": nn.Flatten(1, 2), "floats": ToFloat()}
        super().__init__(before, {"conv1": conv}, observation, hidden, actions, norm, activation)


class MLP(QNetwork):
    """A perceptron for classic control: (N, 1, numbers) -> (N, actions).

    Args:
        actions: number of actions.
        observation: shape of an observation.
        hidden: units of both hidden layers.
        norm: see `QNetwork`.
        activation: see `QNetwork`.

    Raises:
        ValueError: `activation` is unknown.
    """

    @checked
    def __init__(
        self,
        actions: Count,
        observation: tuple[int, ...],
        hidden: Width = 128,
        norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        if len(observation) > 2:
            raise ValueError(f"q_mlp needs vectors, got observations of shape {tuple(observation)}")
        first = nn.Linear(torch.Size(observation).numel(), units_of(activation, hidden))
        super().__init__({"flatten": nn.Flatten()}, {"fc0": first}, observation, hidden, actions, norm, activation)


def heads_of(module: nn.Module) -> list[Any]:
    """Return all heads that read a network's features, the trained one first; there are several after injections."""
    if not isinstance(module, Injected):
        return [module]
    heads = []
    for head in module.heads:
        heads += heads_of(head)  # an injected head may have been injected before
    return heads


def nonlinear(number: str, units: int, norm: bool, activation: str) -> dict[str, nn.Module]:
    """Return the modules behind a layer: if asked for, a layer norm over all units (and positions), an activation."""
    norms: dict[str, nn.Module] = {f"norm{number}": nn.GroupNorm(1, units)} if norm else {}
    return {**norms, f"{activation}{number}": activation_of(activation)[0]()}


def norms_of(layers: nn.Sequential, count: int) -> list[nn.Module | None]:
    """Return the norms among layers; if there are none, `count` times None."""
    return [m for m in layers if isinstance(m, nn.GroupNorm)] or [None] * count


@torch.no_grad()
def xavier_(network: nn.Module) -> None:
    """Initialise all layers with Xavier-uniform weights and zero biases."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
