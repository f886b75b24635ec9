"""SAC's update on a CPU without autograd: the same kernels in the same order, so the same numbers.

Of one run, or of S seeds at once, whose tensors then have a first dimension of S (`rl.sac.stack.update`).

Networks of these sizes cost what calling torch and autograd's bookkeeping cost, beside their products. Here each pass
is written by hand (`rl.sac.update` has the formulae), and each optimizer is one call of its fused kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rl.sac.networks import (
    EPS,
    LOG_STD,
    Actor,
    BatchedLayerNorm,
    BatchedLinear,
    Critics,
    Encoder,
    SimbaEncoder,
)
from rl.sac.update import Batch, Update, critic_target, log_probability, normalised

aten = torch.ops.aten
LOW, HALF = LOG_STD[0], (LOG_STD[1] - LOG_STD[0]) / 2
Gradients = dict[int, Tensor]  # by the parameter's id


class Layer(Protocol):
    """Part of a network; it keeps what its backward pass needs of the last forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Outputs."""

    def backward(self, g: Tensor, found: Gradients | None) -> Tensor:
        """Gradients by the outputs -> by the inputs; those by the weights go into `found`, if it is given."""


class Affine:
    """A linear layer, or n of them, (n, batch, d_in) -> (n, batch, d_out).

    Args:
        weight: (d_out, d_in), or (n, d_out, d_in).
        bias: (d_out,), or (n * d_out,).
        names: under which the gradients of both are found.
    """

    def __init__(self, weight: Tensor, bias: Tensor, names: tuple[int, int]) -> None:
        self.weight, self.names, self.batched = weight, names, weight.ndim == 3
        self.transposed = self.weight.mT
        self.row = bias.view(len(self.weight), 1, -1) if self.batched else bias
        self.product = torch.bmm if self.batched else torch.mm

    @classmethod
    def of(cls, module: nn.Linear) -> "Affine":
        """A module's."""
        return cls(module.weight.detach(), module.bias.detach(), (id(module.weight), id(module.bias)))

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        product = torch.baddbmm if self.batched else torch.addmm
        return product(self.row, x, self.transposed)

    def backward(self, g: Tensor, found: Gradients | None) -> Tensor:
        self.weights(g, found)
        return self.product(g, self.weight)

    def weights(self, g: Tensor, found: Gradients | None) -> None:
        """The part of `backward` that the lowest layer needs."""
        if found is not None:
            found[self.names[0]] = g.mT @ self.x  # `bmm` rounds a single row in another way
            found[self.names[1]] = g.sum(1).flatten() if self.batched else g.sum(0)


MakeAffine = Callable[[nn.Linear], Affine]


class Norm:
    """A layer norm, or n of them."""

    def __init__(self, module: nn.LayerNorm | BatchedLayerNorm) -> None:
        self.names = id(module.weight), id(module.bias)
        self.weight, self.bias, self.n = module.weight.detach(), module.bias.detach(), getattr(module, "n", 0)
        self.width = [module.width if isinstance(module, BatchedLayerNorm) else len(module.weight)]
        if self.n:
            self.weight, self.bias = (part.view(self.n, 1, -1) for part in (self.weight, self.bias))

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        if not self.n:
            y, mean, scale = torch.native_layer_norm(x, self.width, self.weight, self.bias, EPS)
            self.saved = mean, scale
            return y
        self.scaled, mean, scale = torch.native_layer_norm(x, self.width, None, None, EPS)
        self.saved = mean, scale
        return self.scaled * self.weight + self.bias

    def backward(self, g: Tensor, found: Gradients | None) -> Tensor:
        wanted = [True, found is not None, found is not None]
        if not self.n:
            parts: tuple[Tensor, ...] = aten.native_layer_norm_backward(
                g, self.x, self.width, *self.saved, self.weight, self.bias, wanted
            )
            if found is not None:
                found[self.names[0]], found[self.names[1]] = parts[1:]
            return parts[0]
        if found is not None:
            found[self.names[0]] = (g * self.scaled).sum(1).flatten()
            found[self.names[1]] = g.sum(1).flatten()
        parts = aten.native_layer_norm_backward(
            g * self.weight, self.x, self.width, *self.saved, None, None, [True, False, False]
        )
        return parts[0]


class Relu:
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        self.y = torch.relu_(x)  # what it is applied to is not needed again
        return self.y

    def backward(self, g: Tensor, found: Gradients | None) -> Tensor:
        by_x: Tensor = aten.threshold_backward.grad_input(g, self.y, 0, grad_input=g)  # nor is what comes from above
        return by_x


class Residual:
    """x + layers(x)."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer.forward(y)
        return x + y

    def backward(self, g: Tensor, found: Gradients | None) -> Tensor:
        inner = g
        for layer in reversed(self.layers):
            inner = layer.backward(inner, found)
        return g + inner


class Chain:
    """The layers of an encoder, and of a single head behind them; `affine`: of a linear layer."""

    def __init__(self, encoder: Encoder, head: nn.Linear | None = None, affine: MakeAffine = Affine.of) -> None:
        self.layers: list[Layer] = []
        if isinstance(encoder, SimbaEncoder):
            self.layers.append(affine(encoder.input))
            for block in encoder.blocks:
                up, down = affine(block.up), affine(block.down)  # type: ignore[arg-type]
                self.layers.append(Residual([Norm(block.norm), up, Relu(), down]))  # type: ignore[arg-type]
            self.layers.append(Norm(encoder.norm))  # type: ignore[arg-type]
        else:
            for layer in encoder.layers:
                self.layers += [affine(layer), Relu()]  # type: ignore[arg-type]
        if head is not None:
            self.layers.append(affine(head))

    def forward(self, x: Tensor) -> Tensor:
        """To the features, or the head's outputs."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, g: Tensor, found: Gradients | None, inputs: bool) -> Tensor:
        """From the outputs' gradients; `inputs`: whether those by the inputs are needed."""
        for layer in reversed(self.layers[1:]):
            g = layer.backward(g, found)
        first = self.layers[0]
        assert isinstance(first, Affine)
        if inputs:
            return first.backward(g, found)
        first.weights(g, found)
        return g


class Policy:
    """An actor's pass with its log-probability, forward and backward; `affine`: of a linear layer."""

    def __init__(self, actor: Actor, affine: MakeAffine = Affine.of) -> None:
        self.encoder = Chain(actor.encoder, affine=affine)
        self.mean, self.log_std = affine(actor.head["mean"]), affine(actor.head["log_std"])  # type: ignore[arg-type]

    def forward(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probabilities, as `rl.sac.update.squash` makes them."""
        action, log_std = self.act(observation, noise)
        return action, log_probability(self.u, noise, log_std)

    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions, and the logarithms of their deviations."""
        features, self.noise = self.encoder.forward(observation), noise
        self.bent = torch.tanh(self.log_std.forward(features))
        log_std = LOW + HALF * (1 + self.bent)
        self.std = log_std.exp()
        self.u = self.mean.forward(features) + self.std * noise
        self.action = torch.tanh(self.u)
        return self.action, log_std

    def backward(self, by_action: Tensor, by_log_p: Tensor, found: Gradients) -> None:
        """Gradients of all weights; by actions (..., batch, actions) and by the log-probabilities (..., batch)."""
        by_log_p = by_log_p[..., None].expand_as(self.u)
        twice = by_log_p * 2  # through -2 (log 2 - u - softplus(-2 u))
        by_u = aten.softplus_backward(twice, -2 * self.u, 1, 20) * -2 + twice
        by_u = by_u + aten.tanh_backward(by_action, self.action)
        by_log_std = by_u * self.noise * self.std - by_log_p
        by_bent = aten.tanh_backward(by_log_std * HALF, self.bent)
        by_features = self.mean.backward(by_u, found) + self.log_std.backward(by_bent, found)
        self.encoder.backward(by_features, found, inputs=False)


class Values:
    """The passes of n critics; `affine`: of a linear layer."""

    def __init__(self, critics: Critics, affine: MakeAffine = Affine.of) -> None:
        assert isinstance(critics.head, nn.Linear)
        self.n, self.chain = critics.n, Chain(critics.encoder, critics.head, affine)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """(..., n, batch)."""
        x = torch.cat([observation, action], -1).unsqueeze(-3)
        self.shape = (*x.shape[:-3], self.n, *x.shape[-2:])
        return self.chain.forward(x.expand(self.shape).flatten(0, -3)).view(self.shape[:-1])

    def by_action(self, g: Tensor, actions: int) -> Tensor:
        """Gradients by the actions, from those by the values (..., n, batch)."""
        by_inputs = self.chain.backward(g.view(-1, self.shape[-2], 1), None, inputs=True)
        return by_inputs.view(self.shape).sum(-3)[..., -actions:]

    def by_weights(self, g: Tensor, found: Gradients) -> None:
        """Gradients by the weights."""
        self.chain.backward(g.view(-1, self.shape[-2], 1), found, inputs=False)


class FusedStep:
    """The step of a fused AdamW without what `torch.optim` does around it; its state stays the optimizer's own.

    It is looked at when the first step is made, as a checkpoint's state may come before it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.begun = optimizer, False

    def _begin(self) -> None:
        (group,) = self.optimizer.param_groups
        self.group, self.names, self.begun = group, [id(parameter) for parameter in group["params"]], True
        self.weights = [parameter.detach() for parameter in group["params"]]
        states = [self.optimizer.state[parameter] for parameter in group["params"]]
        for state, weight in zip(states, self.weights, strict=True):
            if not state:  # as the optimizer itself begins
                state.update(step=torch.zeros((), dtype=torch.float32))
                state.update(exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        self.first, self.second = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq"))
        self.counts = [state["step"] for state in states]

    def __call__(self, found: Gradients) -> None:
        """One step along these gradients."""
        if not self.begun:
            self._begin()
        group = self.group
        torch._foreach_add_(self.counts, 1)
        torch._fused_adamw_(
            self.weights,
            [found[name] for name in self.names],
            self.first,
            self.second,
            [],
            self.counts,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
        )


@dataclass
class QuickUpdate:
    """Makes the updates of an agent, as its networks and optimizers are now; all must stay the same objects.

    Args:
        policy: the actor.
        critic: the critics.
        target: their slow copy.
        log: of the temperature, (), or (S,) of S agents.
        steps: of the optimizers of `actor`, `temperature` and `critic`.
        slow: weights of the target.
        fast: of the critics, to which they move.
        gamma: discount of a decision.
        tau: of the target.
        target_entropy: of the policy.
    """

    policy: Policy
    critic: Values
    target: Values
    log: Tensor
    steps: Mapping[str, Callable[[Gradients], None]]
    slow: list[Tensor]
    fast: list[Tensor]
    gamma: float
    tau: float
    target_entropy: float

    @classmethod
    def of(cls, agent: Update) -> "QuickUpdate":
        """The updates of one agent."""
        slow, fast = ([p.detach() for p in net.parameters()] for net in (agent.target, agent.critic))
        steps = {name: FusedStep(optimizer) for name, optimizer in agent.optimizers.items()}
        networks = Policy(agent.actor), Values(agent.critic), Values(agent.target)
        log, numbers = agent.temperature.log, (agent.gamma, agent.tau, agent.target_entropy)
        return cls(*networks, log, steps, slow, fast, *numbers)

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
        """See `rl.sac.update.Update`. Of S agents, all have a first dimension of S, `noise` a second one."""
        log, size = self.log.detach(), batch.reward.shape[-1]
        x, following = normalised(batch.observation, statistics), normalised(batch.next_observation, statistics)

        action, log_p = self.policy.forward(x, noise[0])
        q, temperature = self.critic.forward(x, action), log.exp()
        weight = temperature[..., None]
        least = q.amin(-2)
        of_actor = (weight * log_p - least).mean(-1)
        chosen = (q == least.unsqueeze(-2)).to(q.dtype)
        by_q = chosen * (-1 / size) / chosen.sum(-2, keepdim=True)
        found: Gradients = {}
        by_action = self.critic.by_action(by_q, action.shape[-1])
        self.policy.backward(by_action, (weight * (1 / size)).expand_as(log_p), found)
        self.steps["actor"](found)

        entropy = -log_p.mean(-1)
        self.steps["temperature"]({id(self.log): (entropy - self.target_entropy) * temperature})

        action, log_p = self.policy.forward(following, noise[1])
        q = self.target.forward(following, action)
        y = critic_target(q, log_p, log.exp()[..., None], batch.reward, batch.terminated, self.gamma)

        q = self.critic.forward(x, batch.action)
        apart = q - y.unsqueeze(-2)
        of_critic = apart.square().sum(-2).mean(-1)
        found = {}
        self.critic.by_weights((apart * 2) * (1 / size), found)
        self.steps["critic"](found)
        torch._foreach_lerp_(self.slow, self.fast, self.tau)
        return torch.stack([of_critic, of_actor, entropy, q.flatten(-2).mean(-1)], -1)


def quick_update(update: Update) -> QuickUpdate | None:
    """These updates without autograd; None where they would need it, or would round in another way."""
    modules: list[Actor | Critics] = [update.actor, update.critic, update.target]
    if update.penalty is not None or not update.critic.n:
        return None
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for module in modules for p in module.parameters()):
        return None
    if any(module.encoder.in_bfloat16 or not _known(module) for module in modules):
        return None
    if not all(p.requires_grad for module in modules[:2] for p in module.parameters()):
        return None
    if not all(type(one) is AdamW and one.defaults["fused"] for one in update.optimizers.values()):
        return None
    return QuickUpdate.of(update)


def _known(module: nn.Module) -> bool:
    """Whether a network has the layers that it was made with; plasticity injection puts others in their place."""
    kinds = (nn.Linear, nn.LayerNorm, BatchedLinear, BatchedLayerNorm)
    leaves = [m for m in module.modules() if next(m.children(), None) is None]
    return all(type(leaf) in kinds for leaf in leaves)
