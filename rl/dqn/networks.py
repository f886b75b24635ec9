"""Action-value networks of DQN (Mnih et al., "Human-level control through deep reinforcement learning", 2015)."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.pi import Injected
from fire_core.units.graph import Consumer, Producer, Units, between


class QNetwork(nn.Module):
    """What both networks share: an encoder, and a head of two linear layers that plasticity injection can replace.

    Attributes:
        injectable: names of the submodules that plasticity injection replaces (see `fire_core.methods.pi`).
    """

    injectable = ("head",)
    encoder: nn.Sequential
    head: nn.Module

    def unit_graph(self) -> list[Units]:
        """The hidden units, see `fire_core.units.graph`: each layer is read by the next one, the last by every head."""
        heads: list[Any] = list(self.head.heads) if isinstance(self.head, Injected) else [self.head]
        layers = [m for m in self.encoder if isinstance(m, (nn.Conv2d, nn.Linear))]
        names = [name for name, m in self.encoder.named_children() if m in layers]
        graph = [between(name, layer, reader) for name, layer, reader in zip(names, layers, layers[1:], strict=False)]
        if layers:
            last = between(names[-1], layers[-1], heads[0][0])
            columns = last.consumers[0].columns
            readers = tuple(Consumer(head[0], columns, probed=head is heads[0]) for head in heads)
            graph.append(Units(last.name, last.count, (Producer(layers[-1]),), readers))
        trained: Any = self.head.new if isinstance(self.head, Injected) else self.head
        return [*graph, between("fc1", trained[0], trained[-1])]


class NatureCNN(QNetwork):
    """The convolutional network of the Nature paper: (N, 4, 84, 84) bytes -> (N, actions) action values.

    Xavier-uniform weights and zero biases, as in the FIRE paper's code.

    Args:
        actions: number of actions.
        observation: shape of an observation, (4, 84, 84).
        width: multiplies every hidden size; 1 is the paper's 32, 64, 64 channels and 512 units.

    Raises:
        ValueError: `width` leaves a layer without a unit, or the observations are not images.
    """

    def __init__(self, actions: int, observation: tuple[int, ...] = (4, 84, 84), width: float = 1.0) -> None:
        super().__init__()
        if len(observation) != 3:
            raise ValueError(f"nature_cnn needs images, got observations of shape {tuple(observation)}")
        a, b, c, hidden = (round(size * width) for size in (32, 64, 64, 512))
        if a < 1:
            raise ValueError(f"width must be at least 1/32, got {width}")
        self.encoder = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(observation[0], a, 8, stride=4),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(a, b, 4, stride=2),
                relu2=nn.ReLU(),
                conv3=nn.Conv2d(b, c, 3),
                relu3=nn.ReLU(),
                flatten=nn.Flatten(),
            )
        )
        with torch.no_grad():
            features = self.encoder(torch.zeros(1, *observation)).shape[1]  # 3136
        self.head = head(features, hidden, actions)
        xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Values of all actions, (N, actions), of stacked frames (N, 4, 84, 84) in 0 ... 255."""
        # Bytes are put in the filters' order before they grow to floats: a third of a small network's time on a CPU.
        x = x.contiguous(memory_format=torch.channels_last).to(torch.float32, copy=True).div_(255)
        values: Tensor = self.head(self.encoder(x))
        return values


class MLP(QNetwork):
    """A perceptron for classic control: (N, 1, numbers) -> (N, actions).

    Args:
        actions: number of actions.
        observation: shape of an observation.
        hidden: units of both hidden layers.
        width: multiplies them.
    """

    def __init__(self, actions: int, observation: tuple[int, ...], hidden: int = 128, width: float = 1.0) -> None:
        super().__init__()
        hidden = max(1, round(hidden * width))
        numbers = torch.Size(observation).numel()
        self.encoder = nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc0=nn.Linear(numbers, hidden), relu0=nn.ReLU()))
        self.head = head(hidden, hidden, actions)
        xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Values of all actions, (N, actions), of observations (N, ...)."""
        values: Tensor = self.head(self.encoder(x))
        return values


def head(features: int, hidden: int, actions: int) -> nn.Sequential:
    """The two linear layers that turn features into action values."""
    layers = OrderedDict(fc1=nn.Linear(features, hidden), relu=nn.ReLU(), fc2=nn.Linear(hidden, actions))
    return nn.Sequential(layers)


@torch.no_grad()
def xavier_(network: nn.Module) -> None:
    """Xavier-uniform weights, zero biases."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
