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
    """Integers or truth values as float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class QNetwork(nn.Module):
    """What both networks share: an encoder, and a head of two linear layers that plasticity injection can replace.

    Attributes:
        injectable: names of the submodules that plasticity injection replaces (see `fire_core.methods.pi`).
    """

    injectable = ("head",)
    encoder: nn.Sequential
    head: nn.Module
    copies: int  # features of each unit

    def unit_graph(self) -> list[Units]:
        """The hidden units, see `fire_core.units.graph`: each layer is read by the next one, the last by every head."""
        heads = heads_of(self.head)
        layers = [m for m in self.encoder if isinstance(m, (nn.Conv2d, nn.Linear))]
        names = [name for name, m in self.encoder.named_children() if m in layers]
        norms = norms_of(self.encoder, len(layers))
        chain = zip(names, layers, layers[1:], norms, strict=False)
        graph = [between(name, layer, reader, norm, self.copies) for name, layer, reader, norm in chain]
        if layers:
            last = between(names[-1], layers[-1], heads[0][0], norms[-1], self.copies)
            columns = last.consumers[0].columns
            readers = tuple(Consumer(head[0], columns, probed=head is heads[0]) for head in heads)
            graph.append(Units(last.name, last.count, (Producer(layers[-1]),), readers, last.norms))
        trained = heads[0]
        return [*graph, between("fc1", trained[0], trained[-1], norms_of(trained, 1)[0], self.copies)]


class NatureCNN(QNetwork):
    """The convolutional network of the Nature paper: (N, 4, 84, 84) bytes -> (N, actions) action values.

    Xavier-uniform weights and zero biases, as in the FIRE paper's code.

    Args:
        actions: number of actions.
        observation: shape of an observation, (4, 84, 84).
        width: multiplies every hidden size; 1 is the paper's 32, 64, 64 channels and 512 units.
        norm: layer norm over a layer's whole map before each activation.
        activation: relu, crelu (the next layer reads twice as many features) or fourier (half as many units).

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
        super().__init__()
        if len(observation) != 3:
            raise ValueError(f"nature_cnn needs images, got observations of shape {tuple(observation)}")
        a, b, c, hidden = (round(size * width) for size in (32, 64, 64, 512))
        if a < 1:
            raise ValueError(f"width must be at least 1/32, got {width}")
        self.copies = activation_of(activation)[1]
        a, b, c = (units_of(activation, size) for size in (a, b, c))
        one, two, three = (
            nn.Conv2d(observation[0], a, 8, stride=4),
            nn.Conv2d(a * self.copies, b, 4, stride=2),
            nn.Conv2d(b * self.copies, c, 3),
        )
        layers: dict[str, nn.Module] = {}
        for i, layer in enumerate((one, two, three), 1):
            layers |= {f"conv{i}": layer, **nonlinear(str(i), layer.out_channels, norm, activation)}
        self.encoder = nn.Sequential(OrderedDict(**layers, flatten=nn.Flatten()))
        with torch.no_grad():
            features = self.encoder(torch.zeros(1, *observation)).shape[1]  # 3136
        self.head = head(features, hidden, actions, norm, activation)
        xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Values of all actions, (N, actions), of stacked frames (N, 4, 84, 84) in 0 ... 255."""
        # Bytes are put in the filters' order before they grow to floats: a third of a small network's time on a CPU.
        x = x.contiguous(memory_format=torch.channels_last).to(torch.float32, copy=True).div_(255)
        values: Tensor = self.head(self.encoder(x))
        return values


class MinAtarCNN(QNetwork):
    """A convolutional network for small images: (N, stack, channels, 10, 10) truth values -> (N, actions).

    One layer of 3x3 filters and one of units, as the authors of MinAtar have it (Young and Tian, arXiv 1903.03176).

    Args:
        actions: number of actions.
        observation: shape of an observation.
        filters: of the convolution.
        hidden: units behind it.
        width: multiplies both.
        norm: layer norm before each activation, of the convolution over its whole map.
        activation: see `NatureCNN`.

    Raises:
        ValueError: `width` leaves a layer without a unit, the observations are of another kind, or `activation` is
            unknown.
    """

    @checked
    def __init__(
        self,
        actions: Count,
        observation: tuple[int, ...] = (1, 4, 10, 10),
        filters: Width = 16,
        hidden: Width = 128,
        width: Annotated[float, within(0, 1000, open_low=True)] = 1.0,
        norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        if len(observation) != 4 or min(observation[2:]) < 3:
            raise ValueError(f"minatar_cnn needs small images of channels, got observations of shape {observation}")
        filters, hidden = round(filters * width), round(hidden * width)
        if min(filters, hidden) < 1:
            raise ValueError(f"width={width} leaves a layer without a unit")
        self.copies = activation_of(activation)[1]
        conv = nn.Conv2d(observation[0] * observation[1], units_of(activation, filters), 3)
        layers = {"conv1": conv, **nonlinear("1", conv.out_channels, norm, activation)}
        self.encoder = nn.Sequential(
            OrderedDict(planes=nn.Flatten(1, 2), floats=ToFloat(), **layers, flatten=nn.Flatten())
        )
        places = (observation[2] - 2) * (observation[3] - 2)
        self.head = head(conv.out_channels * self.copies * places, hidden, actions, norm, activation)
        xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Values of all actions, (N, actions), of observations (N, stack, channels, 10, 10)."""
        values: Tensor = self.head(self.encoder(x))
        return values


class MLP(QNetwork):
    """A perceptron for classic control: (N, 1, numbers) -> (N, actions).

    Args:
        actions: number of actions.
        observation: shape of an observation.
        hidden: units of both hidden layers.
        width: multiplies them.
        norm: layer norm before each activation.
        activation: see `NatureCNN`.

    Raises:
        ValueError: `activation` is unknown.
    """

    @checked
    def __init__(
        self,
        actions: Count,
        observation: tuple[int, ...],
        hidden: Width = 128,
        width: Annotated[float, within(0, 1000, open_low=True)] = 1.0,
        norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        if len(observation) > 2:
            raise ValueError(f"q_mlp needs vectors, got observations of shape {tuple(observation)}")
        hidden = max(1, round(hidden * width))
        numbers, self.copies = torch.Size(observation).numel(), activation_of(activation)[1]
        first = nn.Linear(numbers, units_of(activation, hidden))
        layers = {"fc0": first, **nonlinear("0", first.out_features, norm, activation)}
        self.encoder = nn.Sequential(OrderedDict(flatten=nn.Flatten(), **layers))
        self.head = head(first.out_features * self.copies, hidden, actions, norm, activation)
        xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Values of all actions, (N, actions), of observations (N, ...)."""
        values: Tensor = self.head(self.encoder(x))
        return values


def head(features: int, hidden: int, actions: int, norm: bool = False, activation: str = "relu") -> nn.Sequential:
    """The two linear layers that turn features into action values."""
    units, copies = units_of(activation, hidden), activation_of(activation)[1]
    between_them = nonlinear("", units, norm, activation)
    first, last = nn.Linear(features, units), nn.Linear(units * copies, actions)
    return nn.Sequential(OrderedDict(fc1=first, **between_them, fc2=last))


def heads_of(module: nn.Module) -> list[Any]:
    """All that read a network's features, the one that is trained first; injection may have been repeated."""
    return [one for part in module.heads for one in heads_of(part)] if isinstance(module, Injected) else [module]


def nonlinear(number: str, units: int, norm: bool, activation: str) -> dict[str, nn.Module]:
    """What follows a layer: layer norm if asked for, over all units (and places of a map), and the activation."""
    norms: dict[str, nn.Module] = {f"norm{number}": nn.GroupNorm(1, units)} if norm else {}
    return {**norms, f"{activation}{number}": activation_of(activation)[0]()}


def norms_of(layers: nn.Sequential, count: int) -> list[nn.Module | None]:
    """The norms among layers, or that many times None."""
    return [m for m in layers if isinstance(m, nn.GroupNorm)] or [None] * count


@torch.no_grad()
def xavier_(network: nn.Module) -> None:
    """Xavier-uniform weights, zero biases."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
