"""The arithmetic of a SAC update: against formulae without autograd, torch.distributions, a plain implementation."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from fire_core import fire_
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.redo import ReDo
from fire_core.metrics import dfi
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import reset_optimizer_state
from rl.sac.learner import Learner, normalised
from rl.sac.networks import squash
from rl.sac.phase import make_context, probe_batch, probe_loss, sample
from rl.sac.task import Task, discount
from rl.sac.train import begin_phase, interact, learn, train_step
from rl.sac.transitions import Batch
from tests.programs import SAC, same
from tests.rl.sac.plain import PlainSac

B = 16
SMALL = ("networks.actor_width=8", "networks.critic_width=12", "networks.critic_depth=2", f"batch_size={B}")


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learner_of(*overrides: str, decisions: int = 0) -> tuple[Task, Learner]:
    """A task and a learner that has made so many decisions, with updates from the fortieth on."""
    task = Task.from_config(SAC.compose(*SMALL, "random_steps=40", *overrides))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    while learner.step < decisions:
        interact(task, learner, acts=False)
    learner.close()
    return task, learner


def batch_for(task: Task, seed: int = 0) -> Batch:
    o, a = task.observations, task.actions
    shapes: list[tuple[int, ...]] = [(B, o), (B, a), (B,), (B,), (B, o)]
    x = [rand(*shape, seed=seed + i).float() for i, shape in enumerate(shapes)]
    return Batch(x[0], x[1].tanh(), x[2], (x[3] > 1).float(), x[4])


def numbers_of(task: Task, learner: Learner, batch: Batch) -> Tensor:
    """What a step adds to the learner's sums."""
    learner.clear_sums()
    train_step(task, learner, batch, acts=False)
    return learner.sums.clone()


def test_log_probability_is_that_of_torch_distributions() -> None:
    mean, log_std, noise = rand(B, 3), 0.3 * rand(B, 3, seed=1), rand(B, 3, seed=2)
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
    """With a gamma of 0 all targets are rewards; with another one those of terminated transitions still are."""
    task, learner = learner_of("gamma=0.9", decisions=60)
    batch = batch_for(task)
    _, targets = probe_batch(task, learner, batch, torch.Generator())
    ended = batch.terminated == 1
    assert 0 < ended.sum() < B
    assert torch.equal(targets[ended, 0], batch.reward[ended])
    assert not torch.isclose(targets[~ended, 0], batch.reward[~ended]).any()


@pytest.mark.parametrize(("steps", "gamma"), [(1000, 0.995), (500, 0.99), (50, 0.95), (100_000, 0.995)])
def test_discount(steps: int, gamma: float) -> None:
    """As in docs/paper.md, figure 4b: clip((T/5 - 1) / (T/5), 0.95, 0.995)."""
    assert discount(steps) == pytest.approx(gamma)


def test_ten_updates_are_those_of_a_plain_implementation() -> None:
    task, learner = learner_of()
    plain = PlainSac(task, learner)
    for i in range(10):
        batch = batch_for(task, 10 * i)
        torch.testing.assert_close(numbers_of(task, learner, batch), plain(batch), rtol=2e-4, atol=2e-5)
    pairs = [(plain.actor, learner.actor), *zip(plain.critics, learner.critics, strict=True)]
    for network, ours in [*pairs, *zip(plain.targets, learner.target_critics, strict=True)]:
        for p, q in zip(network.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(q.detach(), p.detach(), rtol=1e-4, atol=2e-5)


def test_methods_are_given_the_losses_of_the_step() -> None:
    """The gradients of `Context.loss` for a batch are those of `train_step`: of each network's own loss."""
    task, learner = learner_of("temperature=0.3", decisions=60)
    learner.optimizers = {name: torch.optim.SGD(_parameters(learner, name), lr=0.0) for name in learner.optimizers}
    drawn = sample(learner, B, torch.Generator().manual_seed(0))
    context = make_context(task, learner, "boundary")
    assert context.loss is not None
    seed = torch.Generator().manual_seed(1)
    inputs, targets = probe_batch(task, learner, drawn, seed)
    parameters = list(learner.net.parameters())
    told = context.loss(inputs, targets)
    gradients = torch.autograd.grad(told, parameters)
    learner.generator = torch.Generator().manual_seed(1)  # the same noise
    statistics = learner.statistics.tensors(task.device)
    batch = drawn._replace(
        observation=normalised(drawn.observation, statistics),
        next_observation=normalised(drawn.next_observation, statistics),
    )
    critic_loss, actor_loss, *_ = numbers_of(task, learner, batch)
    torch.testing.assert_close(told, critic_loss + actor_loss)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def _parameters(learner: Learner, optimizer: str) -> list[torch.nn.Parameter]:
    return [p for group in learner.optimizers[optimizer].param_groups for p in group["params"]]


def test_a_method_sees_the_passes_that_are_trained() -> None:
    """Of the passes of a step those on the replay's own actions, and no pass that chooses actions or evaluates."""
    task, learner = learner_of(decisions=60)
    graph = unit_graph(learner.net.modules)
    batch = batch_for(task)
    with Watch(graph, mean_magnitude).on() as watch:
        train_step(task, learner, batch, acts=True)
        seen = watch.read()
        interact_once = functools.partial(learner.actor.sample, batch.next_observation, torch.zeros(B, task.actions))
        with learner.net.mode(training=False):
            interact_once()
        assert same(watch.read(), seen)
    task, again = learner_of(decisions=60)
    expected = Watch(unit_graph(again.net.modules), mean_magnitude)
    with expected.on(), torch.no_grad():
        again.actor(batch.observation)
        for critic in again.critics:
            critic(batch.observation, batch.action)
    assert same(seen, expected.read())


def test_nothing_in_an_update_asks_the_device_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    task, learner = learner_of()
    batch, second = batch_for(task), batch_for(task, 1)
    train_step(task, learner, batch, acts=False)  # the optimizers make their state

    def asked(*_: object) -> None:
        raise AssertionError("the host waits for the device")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(Tensor, name, asked)
    train_step(task, learner, second, acts=False)


@pytest.mark.parametrize("kind", ["simba", "mlp"])
def test_a_single_critic_and_both_kinds_of_networks_learn(kind: str) -> None:
    task, learner = learner_of(f"networks={kind}", "env.twin=false")
    assert len(learner.critics) == 1
    batch = batch_for(task)
    learner.optimizers["critics"].param_groups[0]["lr"] = 3e-3
    losses = [numbers_of(task, learner, batch)[0].item() for _ in range(80)]
    assert losses[-1] < 0.6 * losses[0]


def test_bfloat16_is_near_float32() -> None:
    numbers = []
    for precision in ("float32", "bfloat16"):
        task, learner = learner_of(f"precision={precision}")
        numbers.append(numbers_of(task, learner, batch_for(task)))
    assert numbers[0].dtype == numbers[1].dtype == torch.float32
    assert not torch.equal(*numbers)
    torch.testing.assert_close(numbers[1], numbers[0], rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo reads it of inputs
@pytest.mark.parametrize("method", ["fire", "pi"])
def test_compiled_networks_make_the_same_updates(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by dynamo alone, for the C++ that inductor makes takes half a minute to compile."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    learners = []
    for how in ("off", "default"):
        task, learner = learner_of(f"compile={how}", f"method={method}", decisions=60)
        begin_phase(task, learner, 1, None)
        learn(task, learner, acts=False)
        learners.append(learner)
    plain, compiled = learners
    for name, module in plain.net.modules.items():
        for key, value in module.state_dict().items():
            torch.testing.assert_close(compiled.net.modules[name].state_dict()[key], value, rtol=1e-4, atol=1e-5)


def test_fire_projects_each_critic() -> None:
    """Kernels and heads become isometries at sqrt(d_out / d_in); biases and norms stay."""
    _, learner = learner_of()
    for critic in learner.critics:
        with torch.no_grad():
            for p in critic.parameters():
                p.add_(0.3 * torch.randn_like(p))
        old = {name: p.detach().clone() for name, p in critic.named_parameters()}
        report = fire_(critic, solver="exact", layout="sac")
        assert {row.name for row in report} == {name for name in old if old[name].ndim == 2}
        for entry in resolve(critic, "sac"):
            if entry.action == "project":
                d_out, d_in = entry.shape
                matrix = entry.view(entry.parameter.detach())
                assert dfi(matrix / (d_out / d_in) ** 0.5).item() < 1e-8
            else:
                assert torch.equal(entry.parameter.detach(), old[entry.name])


def test_redo_recycles_units_of_one_critic_and_forgets_their_moments() -> None:
    task, learner = learner_of(decisions=60)
    up, down = learner.critics[0].encoder.blocks[1].up, learner.critics[0].encoder.blocks[1].down
    with torch.no_grad():
        for network in learner.net.modules.values():
            for block in network.encoder.blocks:
                block.up.bias.fill_(9.0)  # no unit is silent
        up.bias[5], up.weight[5] = -100.0, 0.0  # but unit 5 of the first critic
    other = learner.critics[1].encoder.blocks[1].up.weight.detach().clone()
    ReDo(threshold=0.0, samples=B).after_epoch(learner.net, make_context(task, learner, "row"))
    own: Any = learner.optimizers["critics"]
    assert up.weight[5].abs().sum() > 0
    assert torch.equal(down.weight[:, 5], torch.zeros(12))
    assert torch.equal(learner.critics[1].encoder.blocks[1].up.weight, other)
    assert own.state[up.weight]["exp_avg"][5].abs().sum() == 0
    assert own.state[up.weight]["exp_avg"][4].abs().sum() > 0
    assert reset_optimizer_state(own, [up.weight]) == 1


def test_weights_are_clipped_in_every_network() -> None:
    task, learner = learner_of(decisions=60)
    WeightClipping(zeta=1e-3).after_step(learner.net, make_context(task, learner, "step"))
    for network in learner.net.modules.values():
        assert 0 < network.encoder.blocks[0].up.weight.abs().max() <= 1e-3
    with torch.no_grad():
        inputs, targets = probe_batch(task, learner, sample(learner, B, torch.Generator()), torch.Generator())
        assert probe_loss(task, learner, inputs, targets).isfinite()
