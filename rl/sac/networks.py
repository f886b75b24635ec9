"""SimBa networks for SAC (Lee et al., "SimBa: Simplicity Bias for Scaling Up Parameters in Deep RL", arXiv 2410.09754),
and the plain MLPs of SAC itself (Haarnoja et al., arXiv 1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core.methods.pi import Injected
from fire_core.ranges import Depth, Width, check_arguments, one_of
from fire_core.units.graph import Consumer, Producer, Units, between, weight

EPS = 1e-6  # of every layer norm
LOG_STD_RANGE = (-10.0, 2.0)  # of the policy


class Block(nn.Module):
    """Residual block x + down(relu(up(norm(x)))), whose hidden layer is four times as wide as x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        he_normal_(self.up)
        he_normal_(self.down)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.relu(self.up(self.norm(x))))
        return out


class SimbaEncoder(nn.Module):
    """A linear layer, `depth` residual blocks and a layer norm: (batch, inputs) -> (batch, width)."""

    def __init__(self, inputs: int, width: int, depth: int, bfloat16: bool = False) -> None:
        super().__init__()
        self.in_bfloat16 = bfloat16  # products within blocks; the residual stream stays in float32
        self.input = nn.Linear(inputs, width)
        orthogonal_(self.input)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            for block in self.blocks:
                x = block(x)
        features: Tensor = self.norm(x)
        return features

    def units(self, name: str, heads: list[nn.Module]) -> list[Units]:
        """Return the hidden units within the blocks, for methods that recycle units.

        Units of the residual stream are left out; `heads` read only that stream, and thus none of the hidden units.
        """
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [between(f"{name}.{i}", block.up, block.down) for i, block in enumerate(blocks)]


class MlpEncoder(nn.Module):
    """`depth` linear layers with ReLU, at torch's default initial weights: (batch, inputs) -> (batch, width)."""

    def __init__(self, inputs: int, width: int, depth: int, bfloat16: bool = False) -> None:
        super().__init__()
        self.in_bfloat16 = bfloat16
        sizes = [inputs, *[width] * depth]
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            for layer in self.layers:
                x = F.relu(layer(x))
        return x.float()

    def units(self, name: str, heads: list[nn.Module]) -> list[Units]:
        """Return the units of each layer, for methods that recycle units; `heads` read those of the last layer."""
        pairs = zip(self.layers, self.layers[1:], strict=False)
        graph = [between(f"{name}.{i}", writer, reader) for i, (writer, reader) in enumerate(pairs)]
        last = self.layers[-1]
        readers = tuple(Consumer(head, probed=head is heads[0]) for head in heads)
        return [*graph, Units(f"{name}.{len(graph)}", len(weight(last)), (Producer(last),), readers)]


Encoder = SimbaEncoder | MlpEncoder


class Actor(nn.Module):
    """Map observations (batch, inputs) to mean and log standard deviation, (batch, actions), of actions before tanh."""

    injectable = ("head.mean", "head.log_std")  # for plasticity injection

    def __init__(self, encoder: Encoder, width: int, actions: int) -> None:
        super().__init__()
        self.encoder = encoder
        heads = {"mean": nn.Linear(width, actions), "log_std": nn.Linear(width, actions)}
        self.head = nn.ModuleDict(heads)
        for head in heads.values():
            orthogonal_(head)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder(observation)
        low, high = LOG_STD_RANGE
        return self.head["mean"](x), low + (high - low) / 2 * (1 + torch.tanh(self.head["log_std"](x)))

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions tanh(mean + std * noise), (batch, actions), and their log-probabilities, (batch,).

        Args:
            observation: (batch, inputs).
            noise: standard normal numbers, (batch, actions).
        """
        mean, log_std = self(observation)
        return squash(mean, log_std, noise)

    def unit_graph(self) -> list[Units]:
        """Return the hidden units and the layers that read them, for methods that recycle units."""
        return self.encoder.units("actor", [*readers_of(self.head["mean"]), *readers_of(self.head["log_std"])])


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action tanh(mean + std * noise), (batch, actions), and its log-probability, (batch,)."""
    u = mean + log_std.exp() * noise
    return torch.tanh(u), log_probability(u, noise, log_std)


def log_probability(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density (batch,) of the action tanh(u), where u = mean + exp(log_std) * noise.

    It is computed from u by log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which stays finite where tanh(u)
    rounds to 1.
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return (gaussian - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)


class Critic(nn.Module):
    """Map observations (batch, o) and actions (batch, a) to their values, (batch,).

    Args:
        encoder: turns an observation and an action, concatenated, into features.
        width: number of features.
        name: prefix of the names of its units; each critic needs its own.
    """

    injectable = ("head",)

    def __init__(self, encoder: Encoder, width: int, name: str = "critic") -> None:
        super().__init__()
        self.encoder, self.name = encoder, name
        self.head = nn.Linear(width, 1)
        orthogonal_(self.head)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        values: Tensor = self.head(self.encoder(torch.cat([observation, action], -1)))
        return values.squeeze(-1)

    def unit_graph(self) -> list[Units]:
        """Return the hidden units and the layers that read them, for methods that recycle units."""
        return self.encoder.units(self.name, readers_of(self.head))


def readers_of(head: nn.Module) -> list[nn.Module]:
    """Return the linear layers of a head, the trained one first: one, or several where plasticity was injected."""
    if not isinstance(head, Injected):
        return [head]
    return [layer for injected in head.heads for layer in readers_of(injected)]


class Temperature(nn.Module):
    """The weight of the policy's entropy: a trained number above 0, stored as its logarithm.

    Args:
        initial: its value at the start.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        return self.log.exp()


@dataclass(frozen=True)
class Networks:
    """Sizes of the networks.

    Args:
        kind: simba or mlp.
        actor_width: width of the actor's hidden layers.
        actor_depth: number of the actor's residual blocks (simba) or hidden layers (mlp).
        critic_width: width of each critic's hidden layers.
        critic_depth: number of each critic's residual blocks (simba) or hidden layers (mlp).
        bfloat16: whether products of hidden layers are computed in bfloat16.

    Raises:
        ValueError: a size is below 1 or the kind unknown.
    """

    kind: Annotated[str, one_of("simba", "mlp")] = "simba"
    actor_width: Width = 128
    actor_depth: Depth = 1
    critic_width: Width = 512
    critic_depth: Depth = 2
    bfloat16: bool = False

    def __post_init__(self) -> None:
        check_arguments(Networks, vars(self))

    def actor(self, observations: int, actions: int) -> Actor:
        """Return a new actor for observations and actions of these lengths."""
        encoder = ENCODERS[self.kind](observations, self.actor_width, self.actor_depth, self.bfloat16)
        return Actor(encoder, self.actor_width, actions)

    def critic(self, observations: int, actions: int, name: str = "critic") -> Critic:
        """Return a new critic for observations and actions of these lengths; `name` is the prefix of its units."""
        encoder = ENCODERS[self.kind](observations + actions, self.critic_width, self.critic_depth, self.bfloat16)
        return Critic(encoder, self.critic_width, name)


ENCODERS: dict[str, Callable[[int, int, int, bool], Encoder]] = {"simba": SimbaEncoder, "mlp": MlpEncoder}


# ----------------------------------------------------------------------------------------------------- initialisation


def orthogonal_(layer: nn.Linear) -> None:
    """Set the weight to an orthogonal matrix with gain 1, and the bias to zero."""
    nn.init.orthogonal_(layer.weight)
    nn.init.zeros_(layer.bias)


def he_normal_(layer: nn.Linear) -> None:
    """Draw the weight from a normal distribution of variance 2 / fan_in, truncated, and set the bias to zero.

    It is truncated at two standard deviations of the normal distribution before truncation, which leaves 0.8796 of
    that deviation; dividing by it gives the variance above.
    """
    std = math.sqrt(2 / layer.in_features) / 0.87962566103423978
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
