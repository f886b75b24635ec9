"""One update of soft actor-critic (Haarnoja et al., arXiv 1812.05905): actor, temperature, critics, target.

Everything random comes in as an argument and nothing asks the device for a number, so the whole update can be compiled.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import AdamW, Optimizer

from rl.sac.networks import Actor, Critics

Penalty = Callable[[str], Tensor | None]  # of "actor" or "critic", to be added to its loss
NAMES = ("train/critic_loss", "train/actor_loss", "train/entropy", "train/q")  # of what an update returns


class Batch(NamedTuple):
    """Transitions: (batch, observations), (batch, actions), (batch,), (batch,) 0 or 1, (batch, observations)."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor  # a time limit is no termination: the value of what would have come still counts
    next_observation: Tensor


class Drawn(NamedTuple):
    """What an update is made of."""

    transitions: Batch
    noise: Tensor  # standard normal, (2, batch, actions): of the actions now and next
    statistics: tuple[Tensor, Tensor]  # mean and 1 / deviation of observations, (observations,) each


def normalised(x: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
    """Observations less the mean, times 1 / deviation."""
    mean, scale = statistics
    return (x - mean) * scale


def discount(steps: float) -> float:
    """Gamma for episodes of `steps` decisions (the effective length: the time limit over the action repeat)."""
    fifth = steps / 5
    return min(max((fifth - 1) / fifth, 0.95), 0.995)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action tanh(mean + std * noise), (batch, actions), and its log-probability, (batch,).

    Args:
        mean: of the Gaussian, (batch, actions).
        log_std: of the Gaussian.
        noise: standard normal.
    """
    u = mean + log_std.exp() * noise
    return torch.tanh(u), log_probability(u, noise, log_std)


def log_probability(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of tanh(u), (batch,), from u, so that no atanh near 1 and no log of 1 - tanh^2 = 0 is taken.

    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)).
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return (gaussian - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)


def critic_target(
    q: Tensor, log_probability: Tensor, temperature: Tensor, reward: Tensor, terminated: Tensor, gamma: float
) -> Tensor:
    """y = r + gamma (1 - terminated) (min Q - temperature log p), (..., batch); q: of the targets, (..., n, batch)."""
    return reward + gamma * (1 - terminated) * (q.amin(-2) - temperature * log_probability)


def critic_loss(q: Tensor, y: Tensor) -> Tensor:
    """Squared errors of the n critics, added up, mean over the batch; q (n, batch), y (batch,)."""
    return (q - y).square().sum(0).mean()


def actor_loss(q: Tensor, log_probability: Tensor, temperature: Tensor) -> Tensor:
    """Mean of temperature log p - min Q; q (n, batch)."""
    return (temperature * log_probability - q.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """Temperature times what the entropy is above its target."""
    return log_temperature.exp() * (entropy - target_entropy)


@torch.no_grad()
def move_target_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau source, every parameter."""
    # One call for all tensors, which torch has under a private name alone: a call for each costs more than the numbers.
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


class Temperature(nn.Module):
    """exp(log), a single number > 0.

    Args:
        initial: at the start.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        return self.log.exp()


def adamw(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> AdamW:
    """Decays every parameter, biases and norms too, as the reference does. Frozen ones are passed over."""
    trained = [p for p in parameters if p.requires_grad]
    cuda = trained[0].is_cuda
    return AdamW(trained, lr=lr, weight_decay=weight_decay, fused=True, capturable=cuda)


@dataclass
class Update:
    """The networks of an agent, and one step for all of them.

    Args:
        actor: of a normalised observation.
        critic: n critics.
        target: their slow copy.
        temperature: weight of the entropy.
        optimizers: one for each of `actor`, `temperature`, `critic`.
        gamma: discount of a decision.
        tau: of the target.
        target_entropy: of the policy.
        penalty: of a method; None: none.
    """

    actor: Actor
    critic: Critics
    target: Critics
    temperature: Temperature
    optimizers: dict[str, Optimizer]
    gamma: float
    tau: float
    target_entropy: float
    penalty: Penalty | None = None

    def __call__(self, batch: Batch, noise: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
        """One update; noise (2, batch, actions): of the actions now and next; what `NAMES` says, (4,).

        Args:
            batch: raw observations.
            noise: standard normal.
            statistics: mean and 1 / deviation of observations, (observations,) each.
        """
        observation, following = (
            normalised(batch.observation, statistics),
            normalised(batch.next_observation, statistics),
        )
        of_actor, entropy = self.actor_step(observation, noise[0])
        self.temperature_step(entropy)
        with torch.no_grad():
            y = self.target_values(batch, following, noise[1])
        of_critic, q = self.critic_step(observation, batch.action, y)
        move_target_(self.target, self.critic, self.tau)
        return torch.stack([of_critic, of_actor, entropy, q])

    def actor_step(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and entropy before the step."""
        mean, log_std = self.actor(observation)
        action, log_p = squash(mean, log_std, noise)
        fixed = {name: p.detach() for name, p in self.critic.named_parameters()}
        q = functional_call(self.critic, fixed, (observation, action))
        loss = actor_loss(q, log_p, self.temperature().detach())
        self._step("actor", loss)
        return loss.detach(), -log_p.detach().mean()

    def temperature_step(self, entropy: Tensor) -> None:
        """Towards the target entropy."""
        self._step("temperature", temperature_loss(self.temperature.log, entropy, self.target_entropy))

    def target_values(self, batch: Batch, following: Tensor, noise: Tensor) -> Tensor:
        """y of the batch, (batch,)."""
        mean, log_std = self.actor(following)
        action, log_p = squash(mean, log_std, noise)
        q = self.target(following, action)
        return critic_target(q, log_p, self.temperature(), batch.reward, batch.terminated, self.gamma)

    def critic_step(self, observation: Tensor, action: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss, and the mean value, before the step."""
        q = self.critic(observation, action)
        loss = critic_loss(q, y)
        self._step("critic", loss)
        return loss.detach(), q.detach().mean()

    def _step(self, name: str, loss: Tensor) -> None:
        penalty = None if self.penalty is None else self.penalty(name)
        self.optimizers[name].zero_grad(set_to_none=True)
        torch.autograd.backward(loss if penalty is None else loss + penalty)
        self.optimizers[name].step()


def compiled(update: Update, mode: str) -> Callable[[Batch, Tensor, tuple[Tensor, Tensor]], Tensor]:
    """The update through `torch.compile`, compiled again: networks differ before and after a boundary."""
    torch.compiler.reset()
    return torch.compile(update.__call__, mode=mode)
