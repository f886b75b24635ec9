"""SAC on a stream of tasks."""

import numpy as np
import pytest
import torch

from harness.training import seeding
from rl.sac.learner import Learner, normalised
from rl.sac.phase import diagnose, evaluate, measure
from rl.sac.task import Task
from rl.sac.train import begin_phase, interact
from rl.sac.transitions import Batch, batch_at
from tests.programs import SAC, same

STREAM = (
    "benchmark=continual_control", "benchmark.tasks=3", "benchmark.steps=100", "env_steps=300", "random_steps=20",
    "env=hopper", "eval_episodes=1", "networks=mlp", "benchmark.physics={gravity:[0.5,2.0]}", "benchmark.size=13",
)  # fmt: skip


def test_a_known_boundary_starts_the_agent_anew() -> None:
    task = Task.from_config(SAC.compose(*STREAM))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    while learner.step < 100:
        interact(task, learner, False)
    updates = learner.updates
    begin_phase(task, learner, 1, None)
    assert same(learner.target_critics.state_dict(), learner.critics.state_dict())
    assert learner.statistics.count < 1
    for _ in range(20):
        interact(task, learner, False)
    assert learner.updates == updates
    interact(task, learner, False)
    assert learner.updates == updates + task.config.updates
    drawn = learner.replay.sample(1, 200, torch.Generator().manual_seed(0)).observation[0]
    there = learner.replay.columns["observation"][0, 100:121]
    assert all((row == there).all(1).any() for row in drawn)
    assert task.tasks is not None
    worker = learner.workers.workers[0]
    data = worker.env.env.unwrapped.data
    state = np.concatenate([data.qpos[1:], np.clip(data.qvel, -10, 10)]).astype(np.float32)
    expected = task.tasks.benchmark.change(task.config.seed, 1, 13).observe(state)
    np.testing.assert_allclose(worker.observation, expected, rtol=1e-4, atol=1e-5)
    learner.close()


def test_the_return_in_the_task_that_ended_is_measured_at_a_boundary() -> None:
    task = Task.from_config(SAC.compose(*STREAM, "metrics=cheap"))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    while learner.step < 100:
        interact(task, learner, False)
    learner.phase = 1
    own, previous = (evaluate(task, learner, phase)["eval/return"] for phase in (1, 0))
    assert measure(task, learner, task_ended=True)["previous_return"] == previous
    assert own != previous, "both tasks give this policy the same return: the test cannot tell them apart"
    assert "previous_return" not in measure(task, learner, task_ended=False)
    learner.close()


def test_diagnoses_look_at_fresh_and_old_transitions() -> None:
    task = Task.from_config(SAC.compose(*STREAM, "metrics=cheap", "networks=simba"))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    while learner.step < 80:
        interact(task, learner, False)
    held = learner.replay.columns["observation"][0]
    generator = torch.Generator().manual_seed(0)
    for part, rows_of in (((0.0, 0.1), held[:8]), ((0.9, 1.0), held[72:80])):
        drawn = learner.replay.sample_part(100, generator, part).observation
        assert all((row == rows_of).all(1).any() for row in drawn)
        assert all((row == drawn).all(1).any() for row in rows_of)
    before = {key: value.clone() for key, value in learner.critics.state_dict().items()}
    numbers = diagnose(task, learner)
    assert same(before, learner.critics.state_dict())
    assert diagnose(task, learner) == numbers
    assert {"dormant_ratio", "effective_rank", "dfi", "gradient_norm_actor", "td_fresh"} <= numbers.keys()
    # By hand, on the transitions and the noise that `diagnose` draws.
    draw = seeding.generator(task.config.seed, "diagnose", learner.step)
    batch = batch_at(learner.replay.sample(1, 512, draw), 0)
    y = targets_by_hand(task, learner, batch, torch.randn(2, 512, task.actions, generator=draw)[0])
    critics = learner.critics
    critics.zero_grad()
    x = normalised(batch.observation, learner.statistics.tensors(task.device))
    squares = 0.0
    for critic in critics:
        torch.nn.functional.mse_loss(critic(x, batch.action), y).backward()
        squares += sum(float((p.grad**2).sum()) for p in critic.parameters() if p.grad is not None)
    assert numbers["gradient_norm"] == pytest.approx(squares**0.5, rel=1e-3)
    old = learner.replay.sample_part(512, draw, (0.0, 0.1))
    y = targets_by_hand(task, learner, old, torch.randn(2, 512, task.actions, generator=draw)[0])
    x = normalised(old.observation, learner.statistics.tensors(task.device))
    errors = torch.stack([critic(x, old.action) - y for critic in critics])
    assert numbers["td_old"] == pytest.approx(float(errors.detach().abs().mean()), rel=1e-3)
    learner.close()


@torch.no_grad()
def targets_by_hand(task: Task, learner: Learner, batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    following = normalised(batch.next_observation, learner.statistics.tensors("cpu"))
    mean, log_std = learner.actor(following)
    u = mean + log_std.exp() * noise
    gaussian = torch.distributions.Normal(mean, log_std.exp()).log_prob(u).sum(1)
    log_p = gaussian - torch.log(1 - torch.tanh(u) ** 2 + 1e-9).sum(1)
    q = torch.min(*(target(following, torch.tanh(u)) for target in learner.target_critics))
    return batch.reward + task.gamma * (1 - batch.terminated) * (q - learner.temperature() * log_p)


@pytest.mark.parametrize("env", ["walker", "hopper", "double_pendulum"])
@pytest.mark.parametrize(
    ("sequence", "observations", "actions", "gamma"),
    [
        ("Walker2d-v5,HalfCheetah-v5", 17, 6, 0.995),
        ("Pendulum-v1", 3, 1, 0.975),  # episodes of 200 steps
        ("Pendulum-v1,InvertedPendulum-v5", 4, 1, 0.995),
    ],
)
def test_the_interface_is_that_of_the_sequence(
    env: str, sequence: str, observations: int, actions: int, gamma: float
) -> None:
    """Whatever the environment is that `env=` names, and that the agent never meets."""
    stream = (*STREAM, "benchmark.size=null", "benchmark.physics=null")
    task = Task.from_config(SAC.compose(*stream, f"env={env}", f"benchmark.sequence=[{sequence}]"))
    assert (task.observations, task.actions) == (observations, actions)
    assert task.gamma == pytest.approx(gamma)
    assert task.modules["actor"](torch.zeros(1, observations))[0].shape == (1, actions)
