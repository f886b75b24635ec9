"""The speed of a SAC update against a plain eager one, alternating in one process.

python scripts/bench_sac.py                                  the paper's sizes: 51 numbers, 19 actions, batch 256
python scripts/bench_sac.py --compile default --threads 1    with torch.compile too
python scripts/bench_sac.py --device cuda --compile reduce-overhead      a GPU
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl.sac.networks import Networks, plain_critic
from rl.sac.update import Batch, Temperature, Update, adamw, compiled
from scripts.interleaved import report, seconds_of

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
    """SAC as it is usually written (for instance in CleanRL): two critics one after the other, torch's own
    distributions, an optimizer step without fusion, the gradient of each loss for all its inputs."""

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


def ours(sizes: Networks, o: int, a: int, device: str) -> Update:
    """An agent at its start."""
    torch.manual_seed(0)
    actor = sizes.actor(o, a).to(device)
    critic, target = (sizes.critics(o, a, 2).to(device) for _ in range(2))
    target.requires_grad_(False).load_state_dict(critic.state_dict())
    temperature = Temperature(0.01).to(device)
    optimizers: dict[str, torch.optim.Optimizer] = {
        "actor": adamw(actor.parameters(), 1e-4, 1e-2),
        "critic": adamw(critic.parameters(), 1e-4, 1e-2),
        "temperature": adamw(temperature.parameters(), 1e-4, 0.0),
    }
    return Update(actor, critic, target, temperature, optimizers, 0.99, 0.005, -0.5 * a)


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


def random_batch(size: int, o: int, a: int, device: str, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Random transitions and noise."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    batch = Batch(
        normal(size, o), normal(size, a).tanh(), normal(size), torch.zeros(size, device=device), normal(size, o)
    )
    return batch, normal(2, size, a)


def bench_updates(args: argparse.Namespace) -> None:
    """The plain update, this one, and this one in every faster setting asked for."""
    o, a, device = args.observations, args.actions, args.device
    how = (args.actor_width, args.actor_depth, args.critic_width, args.critic_depth)
    batch, noise = random_batch(args.batch, o, a, device, torch.Generator().manual_seed(1))
    given = batch, noise, (torch.zeros(o, device=device), torch.ones(o, device=device))
    exact, fast = Networks("simba", *how), Networks("simba", *how, bfloat16=True)
    variants: dict[str, Callable[..., Tensor]] = {"plain eager": plain_like(ours(exact, o, a, device), exact, o, a)}
    for name, sizes in (("float32", exact), ("bfloat16", fast)):
        variants[f"rl.sac, {name}"] = ours(sizes, o, a, device)
        if args.compile != "off":
            variants[f"rl.sac, {name}, compiled"] = compiled(ours(sizes, o, a, device), args.compile)
    for function in variants.values():  # compiling, capturing
        for _ in range(8 if device == "cuda" else 1):
            function(*given)

    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {args.threads} threads"
    print(f"{where}; {o} observations, {a} actions, batch {args.batch}, critics {how[2]} x {how[3]}")
    loops = {name: partial(function, *given) for name, function in variants.items()}
    report(seconds_of(loops, args.rounds, args.threads, args.updates), args.updates, "updates")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("observations", 51), ("actions", 19), ("batch", 256), ("actor-width", 128), ("actor-depth", 1),
        ("critic-width", 512), ("critic-depth", 2), ("threads", 2), ("rounds", 5), ("updates", 100),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", default="off", help="a mode of torch.compile; reduce-overhead: CUDA graphs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bench_updates(args)


if __name__ == "__main__":
    main()
