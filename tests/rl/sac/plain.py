"""SAC as it is usually written, to compare with: two critics one after the other, no fusion, torch's distributions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl.sac.networks import Networks, plain_critic
from rl.sac.update import Batch, Update

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
    """An agent."""

    def __init__(self, sizes: Networks, o: int, a: int, gamma: float, tau: float, entropy: float) -> None:
        def critic() -> PlainSimba:
            return PlainSimba(o + a, sizes.critic_width, sizes.critic_depth, [1])

        self.actor = PlainSimba(o, sizes.actor_width, sizes.actor_depth, [a, a])
        self.critics, self.targets = [critic(), critic()], [critic(), critic()]
        self.log_temperature = nn.Parameter(torch.tensor(0.01).log())
        self.gamma, self.tau, self.entropy = gamma, tau, entropy

    def start(self, lr: float = 1e-4, decay: float = 1e-2) -> None:
        """Make the optimizers."""
        both = [p for critic in self.critics for p in critic.parameters()]
        how: dict[str, Any] = {"lr": lr, "foreach": False}
        self.of_actor = torch.optim.AdamW(self.actor.parameters(), weight_decay=decay, **how)
        self.of_critics = torch.optim.AdamW(both, weight_decay=decay, **how)
        self.of_temperature = torch.optim.AdamW([self.log_temperature], weight_decay=0.0, **how)

    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.actor(observation)
        std = (-10 + 6 * (1 + torch.tanh(raw))).exp()
        u = mean + std * noise
        action = torch.tanh(u)
        gaussian = torch.distributions.Normal(mean, std, validate_args=False).log_prob(u)
        return action, (gaussian - SQUASHING.log_abs_det_jacobian(u, action)).sum(-1)

    def __call__(self, batch: Batch, noise: Tensor, normaliser: tuple[Tensor, Tensor]) -> Tensor:
        mean, scale = normaliser
        x, following = (batch.observation - mean) * scale, (batch.next_observation - mean) * scale
        temperature = self.log_temperature.exp().detach()

        action, log_p = self.act(x, noise[0])
        values = [critic(torch.cat([x, action], -1))[0].squeeze(-1) for critic in self.critics]
        of_actor = (temperature * log_p - torch.min(*values)).mean()
        self.of_actor.zero_grad()
        of_actor.backward()
        self.of_actor.step()

        entropy = -log_p.detach().mean()
        of_temperature = self.log_temperature.exp() * (entropy - self.entropy)
        self.of_temperature.zero_grad()
        of_temperature.backward()
        self.of_temperature.step()

        with torch.no_grad():
            action, log_p = self.act(following, noise[1])
            values = [target(torch.cat([following, action], -1))[0].squeeze(-1) for target in self.targets]
            soft = torch.min(*values) - self.log_temperature.exp() * log_p
            y = batch.reward + self.gamma * (1 - batch.terminated) * soft
        values = [critic(torch.cat([x, batch.action], -1))[0].squeeze(-1) for critic in self.critics]
        first, second = (F.mse_loss(q, y) for q in values)
        of_critics = first + second
        self.of_critics.zero_grad()
        of_critics.backward()
        self.of_critics.step()

        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for p, slow in zip(critic.parameters(), target.parameters(), strict=True):
                    slow.copy_(self.tau * p + (1 - self.tau) * slow)
        return torch.stack([of_critics.detach(), of_actor.detach(), entropy, torch.cat(values).detach().mean()])


def plain_like(update: Update, sizes: Networks, o: int, a: int) -> PlainSac:
    """The plain agent with the same weights."""
    plain = PlainSac(sizes, o, a, update.gamma, update.tau, update.target_entropy)
    pairs: list[tuple[nn.Module, nn.Module]] = [(plain.actor, update.actor)]
    for nets, batched in ((plain.critics, update.critic), (plain.targets, update.target)):
        pairs += [(net, plain_critic(batched, i)) for i, net in enumerate(nets)]
    with torch.no_grad():
        for net, source in pairs:
            net.to(next(source.parameters()).device)
            for p, q in zip(net.parameters(), source.parameters(), strict=True):
                p.copy_(q)
    plain.log_temperature = nn.Parameter(update.temperature.log.detach().clone())
    plain.start()
    return plain
