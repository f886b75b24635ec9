"""The arithmetic of a SAC update: against formulae without autograd, torch.distributions, a plain implementation."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from fire_core import fire_
from fire_core.methods import Net
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.parseval import Parseval
from fire_core.methods.redo import ReDo
from fire_core.metrics import dfi
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import reset_optimizer_state
from rl.sac.learner import separated, share_state
from rl.sac.networks import Networks, plain_critic
from rl.sac.update import (
    Batch,
    Temperature,
    Update,
    adamw,
    critic_target,
    discount,
    squash,
)
from tests.rl.sac.plain import plain_like

SIZES = Networks("simba", 8, 1, 12, 2)
O, A, B = 7, 3, 16


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_log_probability_is_that_of_torch_distributions() -> None:
    mean, log_std, noise = rand(B, A), 0.3 * rand(B, A, seed=1), rand(B, A, seed=2)
    action, log_p = squash(mean, log_std, noise)
    theirs = Independent(TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform()), 1)
    torch.testing.assert_close(log_p, theirs.log_prob(action), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("u", [-60.0, -12.0, 12.0, 60.0])
def test_log_probability_where_tanh_is_one(u: float) -> None:
    """float32 tanh(12) is 1: the density is still right, and so is its gradient."""
    mean = torch.tensor([[u]], requires_grad=True)
    _, log_p = squash(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    exact = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - abs(u) - math.log1p(math.exp(-2 * abs(u))))
    assert log_p.item() == pytest.approx(exact, rel=1e-5)
    (gradient,) = torch.autograd.grad(log_p.sum(), mean)
    assert gradient.item() == pytest.approx(2 * math.tanh(u), rel=1e-5)


def test_target_ends_where_the_episode_does_and_not_at_a_time_limit() -> None:
    q, log_p, reward = torch.tensor([[3.0, 3.0], [2.0, 5.0]]), torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.5])
    y = critic_target(q, log_p, torch.tensor(0.1), reward, torch.tensor([1.0, 0.0]), 0.9)
    torch.testing.assert_close(y, torch.tensor([0.5, 0.5 + 0.9 * (3.0 + 0.1)]))


@pytest.mark.parametrize(("steps", "gamma"), [(1000, 0.995), (500, 0.99), (50, 0.95), (100_000, 0.995)])
def test_discount(steps: int, gamma: float) -> None:
    """As in docs/paper.md, figure 4b: clip((T/5 - 1) / (T/5), 0.95, 0.995)."""
    assert discount(steps) == pytest.approx(gamma)


def agent(sizes: Networks = SIZES, critics: int = 2) -> Update:
    torch.manual_seed(0)
    actor, critic, target = sizes.actor(O, A), sizes.critics(O, A, critics), sizes.critics(O, A, critics)
    target.requires_grad_(False).load_state_dict(critic.state_dict())
    temperature = Temperature(0.01)
    nets = {"actor": actor, "critic": critic}
    optimizers = {name: adamw(net.parameters(), 1e-4, 1e-2) for name, net in nets.items()}
    optimizers["temperature"] = adamw(temperature.parameters(), 1e-4, 0.0)
    return Update(actor, critic, target, temperature, optimizers, 0.99, 0.005, -1.5)


def batch(seed: int = 0) -> tuple[Batch, Tensor, tuple[Tensor, Tensor]]:
    x = [rand(*shape, seed=seed + i).float() for i, shape in enumerate([(B, O), (B, A), (B,), (B,), (B, O), (2, B, A)])]
    rows = Batch(x[0], x[1].tanh(), x[2], (x[3] > 1).float(), x[4])
    return rows, x[5], (torch.full((O,), 0.1), torch.full((O,), 1.1))


def test_ten_updates_are_those_of_a_plain_implementation() -> None:
    update = agent()
    plain = plain_like(update, SIZES, O, A)
    for i in range(10):
        given = batch(10 * i)
        torch.testing.assert_close(update(*given), plain(*given), rtol=2e-4, atol=2e-5)
    for i, (critic, target) in enumerate(zip(plain.critics, plain.targets, strict=True)):
        for net, batched in ((critic, update.critic), (target, update.target)):
            for p, q in zip(net.parameters(), plain_critic(batched, i).parameters(), strict=True):
                torch.testing.assert_close(q.detach(), p.detach(), rtol=1e-4, atol=2e-5)


def test_nothing_in_an_update_asks_the_device_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    update = agent()
    update(*batch())  # the optimizers make their state

    def asked(*_: object) -> None:
        raise AssertionError("the host waits for the device")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(Tensor, name, asked)
    update(*batch(1))


@pytest.mark.parametrize("kind", ["simba", "mlp"])
def test_single_critic_and_both_networks_learn(kind: str) -> None:
    update, given = agent(Networks(kind, 8, 2, 12, 2), 1), batch()
    update.optimizers["critic"].param_groups[0]["lr"] = 3e-3
    losses = [update(*given)[0].item() for _ in range(80)]
    assert losses[-1] < 0.6 * losses[0]


def test_bfloat16_is_near_float32() -> None:
    exact, coarse = agent()(*batch()), agent(dataclasses.replace(SIZES, bfloat16=True))(*batch())
    assert exact.dtype == coarse.dtype == torch.float32
    torch.testing.assert_close(coarse, exact, rtol=0.05, atol=0.05)


def test_fire_sees_each_critic_as_matrices() -> None:
    """Both critics' kernels and heads become isometries at sqrt(d_out / d_in); biases and norms stay."""
    critic = agent().critic
    with torch.no_grad():
        for p in critic.parameters():
            p.add_(0.3 * torch.randn_like(p))
    old = {name: p.detach().clone() for name, p in critic.named_parameters()}
    report = fire_(critic, solver="exact", layout="sac")
    assert {row.name for row in report} == {name for name in old if old[name].ndim == 3}
    for entry in resolve(critic, "sac"):
        if entry.action == "project":
            d_out, d_in = entry.shape
            matrices = entry.view(entry.parameter.detach())
            assert matrices.shape[0] == 2
            torch.testing.assert_close(dfi(matrices / (d_out / d_in) ** 0.5), torch.zeros(2), rtol=0, atol=1e-8)
        else:
            assert torch.equal(entry.parameter.detach(), old[entry.name])


def test_parseval_counts_each_critic() -> None:
    """The penalty of the batched critics is the sum of those of each by itself."""
    critic, method = agent().critic, Parseval(coef=0.1, scale=1.5)
    both = method.penalty(Net({"critic": critic}, {}, "sac"))
    each = [method.penalty(Net({"critic": plain_critic(critic, i)}, {}, "sac")) for i in range(2)]
    torch.testing.assert_close(both, sum(each))


def apart() -> tuple[Update, Net, list[torch.optim.Optimizer]]:
    """An agent after an update; its actor and each critic alone, with their parts of the gradients and the moments."""
    update = agent()
    update(*batch())
    views = separated(Net.of({"actor": update.actor, "critic": update.critic}, "sac"))
    return update, views, share_state(SimpleNamespace(agent=update, separate=views, optimizers=update.optimizers))


def test_redo_recycles_units_of_one_critic_and_forgets_their_moments() -> None:
    """Through the views of `rl.sac.learner`: the batched weights and AdamW's state change."""
    update, views, optimizers = apart()
    up, own = update.critic.encoder.blocks[1].up, update.optimizers["critic"]
    with torch.no_grad():
        for net in (update.actor, update.critic):
            for block in net.encoder.blocks:
                block.up.bias.fill_(9.0)  # no unit is silent
        up.bias[5], up.weight[0, 5] = -100.0, 0.0  # but unit 5 of the first critic
    other = up.weight[1].detach().clone()
    rows, _, _ = batch()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        for name, module in views.modules.items():
            module(*([inputs[:, :O]] if name == "actor" else inputs.split([O, A], 1)))
        return targets.sum()

    context = SimpleNamespace(
        generator=torch.Generator().manual_seed(0),
        batches=lambda: iter([(torch.cat([rows.observation, rows.action], 1), rows.reward)]),
        loss=loss,
        optimizers=optimizers,
    )
    ReDo(threshold=0.0, samples=B).after_epoch(views, context)
    assert up.weight[0, 5].abs().sum() > 0
    assert torch.equal(update.critic.encoder.blocks[1].down.weight[0, :, 5], torch.zeros(12))
    assert torch.equal(up.weight[1], other)
    assert own.state[up.weight]["exp_avg"][0, 5].abs().sum() == 0
    assert own.state[up.weight]["exp_avg"][0, 4].abs().sum() > 0
    assert reset_optimizer_state(own, [up.weight]) == 1


def test_separate_critics_have_the_gradients_of_the_step() -> None:
    """A method that acts after steps finds each critic's own, and what it writes is in the batched weights."""
    update, views, _ = apart()
    up = update.critic.encoder.blocks[1].up
    for i in range(2):
        gradient = views.modules[f"critic{i}"].encoder.blocks[1].up.weight.grad
        assert torch.equal(gradient, up.weight.grad[i])
        assert gradient.abs().sum() > 0
    WeightClipping(zeta=1e-3).after_step(views, None)
    assert up.weight.abs().max() <= 1e-3
    assert all(p.grad is not None for p in update.actor.parameters())
