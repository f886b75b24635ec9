"""SimBa networks for SAC (Lee et al., "SimBa: Simplicity Bias for Scaling Up Parameters in Deep RL", arXiv 2410.09754),
and the plain MLPs of SAC itself (Haarnoja et al., arXiv 1812.05905).

All critics are one network whose tensors have a leading dimension n, so that a pair takes one batched product a layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core.ranges import Depth, Width, check_arguments, one_of
from fire_core.units.graph import Units, between

EPS = 1e-6  # of every layer norm
LOG_STD = (-10.0, 2.0)


class _Affine(torch.autograd.Function):
    """x W^T + b for stacks of matrices; autograd's gradient of W^T would need a copy to become that of W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias.view(len(weight), 1, -1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            gradient @ weight if wanted[0] else None,
            gradient.mT @ x if wanted[1] else None,
            gradient.sum(1).flatten() if wanted[2] else None,
        )


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (n, batch, d_in), weight (n, d_out, d_in), bias (n * d_out,) -> (n, batch, d_out); bfloat16 under autocast."""
    if torch.is_autocast_enabled(x.device.type):
        x, weight, bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    out: Tensor = _Affine.apply(x, weight, bias)
    return out


class BatchedLinear(nn.Linear):
    """n linear layers in parallel: (n, batch, d_in) -> (n, batch, d_out).

    `weight` is (n, d_out, d_in), which `weights.layout` takes for a stack of n matrices. `bias` is one vector of
    n * d_out numbers, as biases are vectors everywhere.

    Args:
        n: layers.
        d_in: inputs of each.
        d_out: outputs of each.
    """

    def __init__(self, n: int, d_in: int, d_out: int) -> None:
        nn.Module.__init__(self)
        self.n, self.in_features, self.out_features = n, d_in, d_out
        self.weight = nn.Parameter(torch.empty(n, d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(n * d_out))

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias)

    def plain(self) -> nn.Linear:
        """One of these layers, without weights."""
        return nn.Linear(self.in_features, self.out_features, device="meta")


class BatchedLayerNorm(nn.Module):
    """n layer norms in parallel, over the last dimension of (n, batch, width); `weight` and `bias` are vectors."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.n, self.width = n, width
        self.weight = nn.Parameter(torch.ones(n * width))
        self.bias = nn.Parameter(torch.zeros(n * width))

    def forward(self, x: Tensor) -> Tensor:
        scaled = F.layer_norm(x, (self.width,), eps=EPS) * self.weight.view(self.n, 1, -1)
        return scaled + self.bias.view(self.n, 1, -1)

    def plain(self) -> nn.LayerNorm:
        """One of these norms, without weights."""
        return nn.LayerNorm(self.width, eps=EPS, device="meta")


def linear(n: int, d_in: int, d_out: int) -> nn.Linear:
    """n layers in parallel; for n = 0 a plain one, without the leading dimension."""
    return BatchedLinear(n, d_in, d_out) if n else nn.Linear(d_in, d_out)


def norm(n: int, width: int) -> nn.Module:
    """The layer norm that matches `linear`."""
    return BatchedLayerNorm(n, width) if n else nn.LayerNorm(width, eps=EPS)


class Block(nn.Module):
    """x + down(relu(up(norm(x)))), four times as wide inside."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.norm = norm(n, width)
        self.up = linear(n, width, 4 * width)
        self.down = linear(n, 4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.relu(self.up(self.norm(x))))
        return out


class SimbaEncoder(nn.Module):
    """Linear, residual blocks, layer norm: (n, batch, inputs) -> (n, batch, width)."""

    def __init__(self, n: int, inputs: int, width: int, depth: int, bfloat16: bool = False) -> None:
        super().__init__()
        self.in_bfloat16 = bfloat16  # products within blocks; the residual stream stays in float32
        self.input = linear(n, inputs, width)
        blocks = [Block(n, width) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm(n, width)
        orthogonal_(self.input)
        for block in blocks:
            he_normal_(block.up)
            he_normal_(block.down)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            for block in self.blocks:
                x = block(x)
        features: Tensor = self.norm(x)
        return features

    def units(self, name: str) -> list[Units]:
        """The hidden units between two layers without a skip around them."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [between(f"{name}.{i}", block.up, block.down) for i, block in enumerate(blocks)]


class MlpEncoder(nn.Module):
    """`depth` linear layers with ReLU: (n, batch, inputs) -> (n, batch, width)."""

    def __init__(self, n: int, inputs: int, width: int, depth: int, bfloat16: bool = False) -> None:
        super().__init__()
        self.in_bfloat16 = bfloat16
        sizes = [inputs, *[width] * depth]
        layers = [linear(n, *sizes[i : i + 2]) for i in range(depth)]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            uniform_(layer)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            for layer in self.layers:
                x = F.relu(layer(x))
        return x.float()

    def units(self, name: str) -> list[Units]:
        """The hidden units between two of its layers; the last ones' readers are the heads."""
        pairs = zip(self.layers, self.layers[1:], strict=False)
        return [between(f"{name}.{i}", one, next_) for i, (one, next_) in enumerate(pairs)]


Encoder = SimbaEncoder | MlpEncoder


class Actor(nn.Module):
    """Observation (batch, inputs) -> mean and log standard deviation of the action before tanh, (batch, actions)."""

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
        low, high = LOG_STD
        return self.head["mean"](x), low + (high - low) / 2 * (1 + torch.tanh(self.head["log_std"](x)))

    def unit_graph(self) -> list[Units]:
        """For methods that recycle units."""
        return self.encoder.units("actor")


class Critics(nn.Module):
    """Values of n critics: observation (batch, o) and action (batch, a) -> (n, batch); (batch,) for a plain one."""

    injectable = ("head",)

    def __init__(self, encoder: Encoder, n: int, width: int, name: str = "critic") -> None:
        super().__init__()
        self.encoder, self.n, self.name = encoder, n, name
        self.head = linear(n, width, 1)
        orthogonal_(self.head)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([observation, action], -1)
        values: Tensor = self.head(self.encoder(x.expand(self.n, *x.shape) if self.n else x))
        return values.squeeze(-1)

    def unit_graph(self) -> list[Units]:
        """For methods that recycle units, which need a plain critic."""
        if self.n:
            raise ValueError("the units of batched critics are declared by plain_critic(critics, i)'s results")
        return self.encoder.units(self.name)


@dataclass(frozen=True)
class Networks:
    """Sizes of the networks.

    Args:
        kind: simba or mlp.
        actor_width: of its hidden layers.
        actor_depth: residual blocks (simba) or hidden layers (mlp).
        critic_width: as for the actor.
        critic_depth: as for the actor.
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
        """A new actor."""
        encoder = ENCODERS[self.kind](0, observations, self.actor_width, self.actor_depth, self.bfloat16)
        return Actor(encoder, self.actor_width, actions)

    def critics(self, observations: int, actions: int, n: int, name: str = "critic") -> Critics:
        """n new critics, or for n = 0 a plain one."""
        inputs = observations + actions
        encoder = ENCODERS[self.kind](n, inputs, self.critic_width, self.critic_depth, self.bfloat16)
        return Critics(encoder, n, self.critic_width, name)


ENCODERS: dict[str, Callable[[int, int, int, int, bool], Encoder]] = {"simba": SimbaEncoder, "mlp": MlpEncoder}


def plain_critic(critics: Critics, i: int) -> Critics:
    """Critic i alone, made of views: writing into it in place writes into `critics`."""
    plain = copy.deepcopy(critics)
    plain.n, plain.name = 0, f"{critics.name}{i}"
    for path, module in critics.named_modules():
        if isinstance(module, (BatchedLinear, BatchedLayerNorm)):
            layer = module.plain()
            layer.weight = nn.Parameter(part(module.weight.detach(), i, module.n))
            layer.bias = nn.Parameter(part(module.bias.detach(), i, module.n))
            plain.set_submodule(path, layer)
    return plain


def part(tensor: Tensor, i: int, n: int) -> Tensor:
    """Critic i's share, as a view, of a parameter of n batched critics or of a tensor of its shape."""
    return tensor[i] if tensor.ndim == 3 else tensor.view(n, -1)[i]


# ----------------------------------------------------------------------------------------------------- initialisation


def _matrices(layer: nn.Linear) -> Tensor:
    """(n, d_out, d_in), as a view."""
    weight = layer.weight.detach()
    return weight if weight.ndim == 3 else weight[None]


def orthogonal_(layer: nn.Linear) -> None:
    """Orthogonal with gain 1, zero bias."""
    for matrix in _matrices(layer):
        nn.init.orthogonal_(matrix)
    nn.init.zeros_(layer.bias)


def he_normal_(layer: nn.Linear) -> None:
    """Normal with variance 2 / fan_in, cut off at two standard deviations (of the normal before cutting), zero bias."""
    std = math.sqrt(2 / layer.in_features) / 0.87962566103423978  # cutting at 2 leaves 0.8796 of the deviation
    for matrix in _matrices(layer):
        nn.init.trunc_normal_(matrix, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)


def uniform_(layer: nn.Linear) -> None:
    """Torch's default for linear layers: uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(layer.in_features)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.uniform_(layer.bias, -bound, bound)
