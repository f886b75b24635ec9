"""SAC's update without autograd: the same numbers, bit for bit."""

from typing import Any

import pytest
import torch

from fire_core.methods.pi import Injected
from rl.sac.learner import Learner
from rl.sac.networks import Networks
from rl.sac.quick import QuickUpdate, quick_update
from rl.sac.task import Task
from rl.sac.train import begin_phase, interact
from rl.sac.update import Batch, Temperature, Update, adamw
from tests.programs import SAC, same

MODULES = ("actor", "critic", "target", "temperature")


def agent(sizes: Networks, observations: int, actions: int, critics: int = 2) -> Update:
    torch.manual_seed(0)
    actor = sizes.actor(observations, actions)
    critic, target = (sizes.critics(observations, actions, critics) for _ in range(2))
    target.requires_grad_(False).load_state_dict(critic.state_dict())
    temperature = Temperature(0.1)
    optimizers: dict[str, torch.optim.Optimizer] = {
        "actor": adamw(actor.parameters(), 1e-3, 1e-2),
        "critic": adamw(critic.parameters(), 1e-3, 1e-2),
        "temperature": adamw(temperature.parameters(), 1e-3, 0.0),
    }
    return Update(actor, critic, target, temperature, optimizers, 0.97, 0.01, -0.5 * actions)


def drawn(size: int, observations: int, actions: int, generator: torch.Generator) -> tuple[Any, ...]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    ends = (torch.rand(size, generator=generator) < 0.1).float()
    batch = Batch(
        normal(size, observations), normal(size, actions).tanh(), normal(size), ends, normal(size, observations)
    )
    statistics = normal(observations), normal(observations).abs() + 0.5
    return batch, normal(2, size, actions), statistics


@pytest.mark.parametrize("kind", ["simba", "mlp"])
@pytest.mark.parametrize("critics", [1, 2, 3])
def test_the_numbers_are_those_of_autograd(kind: str, critics: int) -> None:
    sizes = Networks(kind, 32, 2, 48, 2)
    plain, other = agent(sizes, 11, 3, critics), agent(sizes, 11, 3, critics)
    quick = quick_update(other)
    assert quick is not None
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        given = drawn(32, 11, 3, generator)
        assert torch.equal(plain(*given), quick(*given))
    for name in MODULES:
        assert same(getattr(plain, name).state_dict(), getattr(other, name).state_dict()), name
    for name, optimizer in plain.optimizers.items():
        assert same(optimizer.state_dict(), other.optimizers[name].state_dict())


def test_autograd_goes_on_where_it_stopped() -> None:
    """The optimizers' state stays theirs, also one that a checkpoint brought."""
    sizes = Networks("simba", 16, 1, 16, 1)
    plain, other = agent(sizes, 4, 2), agent(sizes, 4, 2)
    generator = torch.Generator().manual_seed(1)
    for quick in (False, True, False, True):
        made = quick_update(other) if quick else other
        assert made is not None
        for _ in range(2):
            given = drawn(16, 4, 2, generator)
            assert torch.equal(plain(*given), made(*given))
        for optimizer in other.optimizers.values():
            optimizer.load_state_dict(optimizer.state_dict())
    assert same(plain.critic.state_dict(), other.critic.state_dict())


def test_what_needs_autograd_keeps_it() -> None:
    sizes = Networks("simba", 8, 1, 8, 1)
    assert quick_update(agent(sizes, 4, 2)) is not None
    assert quick_update(agent(Networks("simba", 8, 1, 8, 1, bfloat16=True), 4, 2)) is None
    update = agent(sizes, 4, 2)
    update.penalty = lambda name: None
    assert quick_update(update) is None
    update = agent(sizes, 4, 2)
    update.critic.head = Injected(update.critic.head, update.critic.head)
    assert quick_update(update) is None
    update = agent(sizes, 4, 2)
    update.actor.encoder.input.weight.requires_grad_(False)  # type: ignore[union-attr]
    assert quick_update(update) is None


def test_the_trainer_takes_it_after_a_boundary_too() -> None:
    task = Task.from_config(SAC.compose("random_steps=20", "method=fire", "env_steps=100"))
    learner = Learner.new(task)
    begin_phase(task, learner, 0)
    for phase in range(2):
        assert isinstance(learner.update, QuickUpdate)
        while learner.step < task.phases[phase].end:
            interact(task, learner)
        if phase == 0:
            begin_phase(task, learner, 1)
    learner.close()
