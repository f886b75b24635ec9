"""DQN on a stream of tasks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.training import seeding
from rl.dqn.changing import Changing
from rl.dqn.frames import Batch
from rl.dqn.learner import Learner
from rl.dqn.phase import diagnose, evaluate, measure
from rl.dqn.task import Task
from rl.dqn.train import begin_phase, exploration_rate, interact
from tests.programs import DQN, rows, same

STREAM = (
    "benchmark=continual_control", "benchmark.tasks=4", "benchmark.steps=100", "benchmark.size=6", "total_steps=400",
    "learning_starts=20",
)  # fmt: skip


def at_task(index: int, *overrides: str) -> tuple[Task, Learner]:
    """A learner at the first step of a task."""
    task = Task.from_config(DQN.compose(*STREAM, "target_every=70", *overrides))
    learner = Learner.new(task)
    for phase in range(index + 1):
        begin_phase(task, learner, phase, None)
        while phase < index and learner.step < task.phases[phase].end:
            interact(task, learner, acts=False)
    return task, learner


def test_a_known_boundary_empties_the_replay_and_copies_the_target() -> None:
    task, learner = at_task(1)
    assert same(learner.target.state_dict(), learner.q.state_dict())
    assert exploration_rate(task, learner) == 1.0
    updates = learner.updates
    for _ in range(9):
        interact(task, learner, acts=False)
    env, drawn = learner.replay.draw(200, torch.Generator().manual_seed(0))
    assert (drawn > torch.tensor(learner.replay.first_sampled)[env]).all()
    assert learner.updates == updates  # the replay fills again before anything is learnt
    while learner.phase_step < 60:
        interact(task, learner, acts=False)
    assert learner.updates > updates


@pytest.mark.parametrize("options", [("method=base",), ("method=fire", "trigger=every", "trigger.steps=50")])
def test_a_known_boundary_restarts_the_same_whatever_the_method(options: tuple[str, ...]) -> None:
    """Also where a trigger says when the method acts: base is compared with what restarts as it does."""
    _, learner = at_task(1, *options)
    assert learner.optimizer is not None
    assert not learner.optimizer.state
    assert same(learner.target.state_dict(), learner.q.state_dict())


def test_what_is_measured_is_part_of_a_first_task() -> None:
    """Its rows hold it: a run that measures nothing shares it with none that does."""
    one, other = (at_task(0, f"metrics={level}")[0].first_phase_identity() for level in ("off", "cheap"))
    assert one != other


def test_the_return_in_the_task_that_ended_is_measured_at_a_boundary() -> None:
    task, learner = at_task(0, "metrics=cheap")
    while learner.step < task.phases[0].end:
        interact(task, learner, acts=False)
    for weight in learner.q.parameters():  # a policy that plays the two tasks differently
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(weight.numel()))
    learner.phase = 1  # as at the boundary, before the replay is emptied
    own, previous = (evaluate(task, learner, phase)["eval/return"] for phase in (1, 0))
    assert own != previous, "both tasks give this policy the same return: the test cannot tell them apart"
    assert measure(task, learner, task_ended=True)["previous_return"] == previous
    assert "previous_return" not in measure(task, learner, task_ended=False)


def test_a_hidden_boundary_leaves_all_as_it_is() -> None:
    task, learner = at_task(1, "benchmark.boundaries=hidden")
    assert not same(learner.target.state_dict(), learner.q.state_dict())
    assert exploration_rate(task, learner) == task.config.epsilon.end
    updates = learner.updates
    interact(task, learner, acts=False)
    assert learner.updates > updates
    _, drawn = learner.replay.draw(200, torch.Generator().manual_seed(0))
    assert int(drawn.min()) < 50


@pytest.mark.parametrize("boundaries", ["known", "hidden"])
def test_a_method_s_own_optimizer_comes_at_a_boundary_or_from_the_start(boundaries: str) -> None:
    """Where nobody is told of boundaries none can bring it."""
    kinds = []
    for index in range(2):
        _, learner = at_task(index, "method=muon", f"benchmark.boundaries={boundaries}")
        kinds.append(isinstance(learner.optimizer, torch.optim.Adam))
    assert kinds == [boundaries == "known", False]


def test_the_agent_sees_what_the_task_shows() -> None:
    task, learner = at_task(2)
    assert task.benchmark is not None
    emulator = learner.env.emulator
    assert isinstance(emulator, Changing)
    state = np.stack([env.env.unwrapped.state for env in emulator.emulators[0]._envs])  # type: ignore[attr-defined]
    expected = task.benchmark.change(task.config.seed, 2, 6).observe(state.astype(np.float32))
    np.testing.assert_allclose(learner.env.observations[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_diagnoses_look_at_fresh_and_old_transitions() -> None:
    task, learner = at_task(1)
    while learner.phase_step < 80:
        interact(task, learner, acts=False)
    generator = torch.Generator().manual_seed(0)
    first, held = learner.replay.first_sampled[0], learner.replay.written[0] - learner.replay.first_sampled[0]
    for part, low, high in (((0.0, 0.1), 0.0, 0.1 * held + 1), ((0.9, 1.0), 0.9 * held - 1, held)):
        env, drawn = learner.replay.draw(100, generator, part)
        drawn = drawn[env == 0] - first
        assert low <= int(drawn.min())
        assert int(drawn.max()) <= high
    before = {key: value.clone() for key, value in learner.q.state_dict().items()}
    numbers = diagnose(task, learner)
    assert same(before, learner.q.state_dict())
    assert diagnose(task, learner) == numbers
    # By hand, on the batches that `diagnose` draws.
    draw = seeding.generator(task.config.seed, "diagnose", learner.step)
    batch, old = learner.replay.sample(256, draw), learner.replay.draw(256, draw, (0.0, 0.1))
    frames, actions, y = batch.frames.clone(), batch.actions, target_by_hand(learner, batch)
    learner.q.zero_grad()
    values = learner.q(frames[:, :-1])[torch.arange(256), actions]
    torch.nn.functional.huber_loss(values, y).backward()
    norm = sum(float((p.grad**2).sum()) for p in learner.q.parameters() if p.grad is not None) ** 0.5
    assert numbers["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    batch = learner.replay.gather(*old)
    errors = learner.q(batch.frames[:, :-1])[torch.arange(256), batch.actions] - target_by_hand(learner, batch)
    assert numbers["td_old"] == pytest.approx(float(errors.detach().abs().mean()), rel=1e-4)


@torch.no_grad()
def target_by_hand(learner: Learner, batch: Batch) -> torch.Tensor:
    best = learner.target(batch.frames[:, 1:]).amax(1)
    return batch.rewards + 0.99 * torch.where(batch.terminated, 0.0, best)


def test_rows_have_the_return_of_each_task(tmp_path: Path) -> None:
    folder = DQN.run(tmp_path, *STREAM, "method=fire", "eval.episodes=3")
    written = rows(folder)
    ends = [row for row in written if "task/return" in row]
    assert [(row["phase"], row["step"]) for row in ends] == [(0, 100), (1, 200), (2, 300), (3, 400)]
    assert [row["phase"] for row in written if row.get("kind") == "boundary"] == [1, 2, 3]
    assert all("online/return" in row for row in written if "kind" not in row)
    assert all(row["eval/episodes"] == 3 for row in ends)
