"""SAC written once more, to compare with: torch's own distributions, losses and optimizers, no fused operation."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl.sac.learner import Learner
from rl.sac.task import Task
from rl.sac.transitions import Batch

SQUASHING = torch.distributions.TanhTransform()


class PlainBlock(nn.Module):
    """A residual block of one network, written plainly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.relu(self.up(self.norm(x))))
        return out


class PlainSimba(nn.Module):
    """One SimBa network with its heads."""

    def __init__(self, inputs: int, width: int, depth: int, heads: list[int]) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(PlainBlock(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.norm(self.blocks(self.input(x)))
        return [head(x) for head in self.heads]


class PlainSac:
    """An agent with the weights, the rates and the noise of a learner.

    Args:
        task: of the learner.
        learner: its networks are copied.
    """

    def __init__(self, task: Task, learner: Learner) -> None:
        sizes, o, a = task.networks, task.observations, task.actions
        self.task, self.actions = task, a
        self.actor = PlainSimba(o, sizes.actor_width, sizes.actor_depth, [a, a])
        self.critics, self.targets = (
            [PlainSimba(o + a, sizes.critic_width, sizes.critic_depth, [1]) for _ in learner.critics] for _ in range(2)
        )
        pairs = [(self.actor, learner.actor), *zip(self.critics, learner.critics, strict=True)]
        for network, source in [*pairs, *zip(self.targets, learner.target_critics, strict=True)]:
            with torch.no_grad():
                for p, q in zip(network.parameters(), source.parameters(), strict=True):
                    p.copy_(q)
        self.log_temperature = nn.Parameter(learner.temperature.log.detach().clone())
        self.generator = copy.deepcopy(learner.generator)
        both = [p for critic in self.critics for p in critic.parameters()]
        how: dict[str, Any] = {"lr": task.config.lr, "foreach": False}
        self.of_actor = torch.optim.AdamW(self.actor.parameters(), weight_decay=task.config.weight_decay, **how)
        self.of_critics = torch.optim.AdamW(both, weight_decay=task.config.weight_decay, **how)
        self.of_temperature = torch.optim.AdamW([self.log_temperature], weight_decay=0.0, **how)

    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.actor(observation)
        std = (-10 + 6 * (1 + torch.tanh(raw))).exp()
        u = mean + std * noise
        action = torch.tanh(u)
        gaussian = torch.distributions.Normal(mean, std, validate_args=False).log_prob(u)
        return action, (gaussian - SQUASHING.log_abs_det_jacobian(u, action)).sum(-1)

    def __call__(self, batch: Batch) -> Tensor:
        """One update, as `train_step`: its losses, entropy and mean value."""
        config, optimizers = self.task.config, (self.of_actor, self.of_critics, self.of_temperature)
        noise = torch.randn(2, len(batch.reward), self.actions, generator=self.generator)
        x, following = batch.observation, batch.next_observation
        temperature = self.log_temperature.exp().detach()

        with torch.no_grad():
            action, log_p = self.act(following, noise[0])
            values = [target(torch.cat([following, action], -1))[0].squeeze(-1) for target in self.targets]
            soft = torch.min(*values) - temperature * log_p
            y = batch.reward + self.task.gamma * (1 - batch.terminated) * soft
        action, log_p = self.act(x, noise[1])
        values = [critic(torch.cat([x, action], -1))[0].squeeze(-1) for critic in self.critics]
        of_actor = (temperature * log_p - torch.min(*values)).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        of_actor.backward()
        self.of_critics.zero_grad()  # the actor's loss is not for them

        values = [critic(torch.cat([x, batch.action], -1))[0].squeeze(-1) for critic in self.critics]
        first, second = (F.mse_loss(q, y) for q in values)
        of_critics = first + second
        of_critics.backward()

        entropy = -log_p.detach().mean()
        (self.log_temperature.exp() * (entropy - config.target_entropy * self.actions)).backward()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for p, slow in zip(critic.parameters(), target.parameters(), strict=True):
                    slow.copy_(config.tau * p + (1 - config.tau) * slow)
        return torch.stack([of_critics.detach(), of_actor.detach(), entropy, torch.cat(values).detach().mean()])
