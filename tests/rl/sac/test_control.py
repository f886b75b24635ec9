"""MuJoCo tasks: repeats, limits, replayed episodes, statistics, and what is said when something is absent."""

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from harness.config.errors import ConfigError
from rl.common.environments import Environment
from rl.sac import control
from rl.sac.control import Control, Statistics
from rl.sac.transitions import Batch, Transitions
from rl.sac.workers import Worker, Workers, play_episodes

TASKS = [
    Control("gymnasium", "Humanoid-v5"),
    Control("gymnasium", "Hopper-v5", action_repeat=3),
    Control("gymnasium", "InvertedDoublePendulum-v5", action_repeat=2),
]


def actions(worker: Worker, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (count, len(worker.low))).astype(np.float32)


def play(worker: Worker, moves: np.ndarray) -> list[tuple[bytes, float]]:
    return [(s.next_observation.tobytes(), s.reward) for s in map(worker.step, moves)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task)
def test_an_environment_goes_on_bit_for_bit(task: Control) -> None:
    """From the middle of an episode, also where MuJoCo's own state holds more than positions and velocities."""
    one, other = Worker(task, 1), Worker(task, 1)
    play(one, actions(one, 25))
    assert one.episode > 0
    other.load_state_dict(one.state_dict())
    assert play(one, actions(one, 25, 1)) == play(other, actions(one, 25, 1))
    assert (one.episode, one.steps, one.total) == (other.episode, other.steps, other.total)


@pytest.mark.skipif(importlib.util.find_spec("dm_control") is None, reason="dm_control is not installed")
def test_deepmind_control_goes_on_bit_for_bit_and_never_terminates() -> None:
    task = Control("dmc", "cartpole-swingup", action_repeat=8)
    one, other = Worker(task, 1), Worker(task, 1)
    play(one, actions(one, 20))
    other.load_state_dict(one.state_dict())
    moves = actions(one, 110, 1)
    stepped = [one.step(move) for move in moves]
    assert [(s.next_observation.tobytes(), s.reward) for s in stepped] == play(other, moves)
    with pytest.raises(ConfigError, match=r"humanoid-wlk: .*does not exist"):
        Control("dmc", "humanoid-wlk").make()
    with pytest.raises(ConfigError, match=r"env.options=.*'max_episode_steps'.*it takes task_kwargs"):
        Control("dmc", "cartpole-swingup", options={"max_episode_steps": 10}).make()
    assert Control("dmc", "cartpole-swingup", options={"task_kwargs": {"time_limit": 2}}).make().limit == 200
    (ended,) = [s for s in stepped if s.ended_episode]
    assert ended.ended_episode is not None
    assert ended.ended_episode[1] == 1000
    assert not ended.terminated


class Count:
    """An environment that counts: its reward is the number of the step, its action is noted."""

    def __init__(self, ends: int, terminates: bool) -> None:
        self.ends, self.terminates, self.seen = ends, terminates, []
        self.action_space, self.observation_space = Box(-2, 4, (1,)), Box(-np.inf, np.inf, (1,))

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        self.number = 0
        return np.zeros(1), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.number += 1
        self.seen.append(float(action[0]))
        over = self.number == self.ends
        return np.full(1, self.number), self.number, over and self.terminates, over and not self.terminates, {}


@pytest.mark.parametrize("terminates", [True, False])
def test_repeats_add_up_rewards_and_stop_with_the_episode(terminates: bool) -> None:
    env = Count(7, terminates)
    environment = Environment("count", env)
    worker = Worker(SimpleNamespace(make=lambda: environment, action_repeat=3), 0)  # type: ignore[arg-type]
    steps = [worker.step(np.array([x], np.float32)) for x in (-1, 0, 1)]
    assert [s.reward for s in steps] == [1 + 2 + 3, 4 + 5 + 6, 7]
    assert [s.terminated for s in steps] == [False, False, terminates]
    assert steps[-1].next_observation == [7]  # the true last one, which bootstraps a cut episode
    assert steps[-1].ended_episode == (28, 7)
    assert worker.observation == [0]  # a new episode
    assert env.seen == [-2] * 3 + [1] * 3 + [4]


def test_workers_step_side_by_side_and_differ() -> None:
    workers = Workers(TASKS[1], 2, 0)
    first = workers.observations
    assert not np.array_equal(first[0], first[1])
    workers.send(np.zeros((2, 3), np.float32))
    stepped = workers.receive()
    assert np.array_equal(first, np.stack([s.observation for s in stepped]))
    assert np.array_equal(workers.observations, np.stack([s.next_observation for s in stepped]))
    workers.close()


def test_evaluation_plays_the_same_episodes_each_time() -> None:
    eval_envs = [Worker(TASKS[1], seed) for seed in range(3)]

    def still(observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), 3), np.float32)

    once = play_episodes(eval_envs, still)
    assert once == play_episodes(eval_envs, still)
    assert len({total for total, _ in once}) == 3


def test_statistics_are_those_of_all_observations() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, (k, 4)) for k in (1, 5, 100, 2000)]
    statistics = Statistics(4)
    for x in parts:
        statistics.update(x)
    every = np.concatenate(parts)
    assert statistics.mean == pytest.approx(every.mean(0), rel=1e-6)
    assert statistics.variance == pytest.approx(every.var(0), rel=1e-4)
    other = Statistics(4)
    other.load_state_dict(statistics.state_dict())
    for one, two in zip(statistics.tensors(torch.device("cpu")), other.tensors(torch.device("cpu")), strict=True):
        assert torch.equal(one, two)


def numbered(i: int, envs: int) -> Batch:
    x = torch.arange(envs) * 1000 + i
    return Batch(x[:, None].expand(-1, 2), x[:, None], x, x % 2, x[:, None].expand(-1, 2) + 1)


@pytest.mark.parametrize("count", [3, 5, 13])
def test_replay_keeps_the_newest_of_each_environment(count: int) -> None:
    replay = Transitions(10, 2, 2, 1)  # five of each
    for i in range(count):
        replay.add(numbered(i, 2))
    assert len(replay) == 2 * min(count, 5)
    drawn = replay.sample(4, 500, torch.Generator().manual_seed(0))
    assert drawn.observation.shape == (4, 500, 2)
    kept = range(max(count - 5, 0), count)
    assert set(drawn.reward.flatten().tolist()) == {1000 * env + i for env in range(2) for i in kept}
    assert torch.equal(drawn.next_observation, drawn.observation + 1)
    assert torch.equal(drawn.reward[..., None].expand(-1, -1, 2), drawn.observation)
    shares = torch.bincount((drawn.reward.flatten() >= 1000).long()) / drawn.reward.numel()
    assert shares.tolist() == pytest.approx([0.5, 0.5], abs=0.05)


def broken(name: str) -> None:
    """As after `pip install git+...`, which leaves out a folder without `__init__`."""
    raise ModuleNotFoundError(f"No module named '{name}.dmc_deps'", name=f"{name}.dmc_deps")


def blind(name: str) -> None:
    raise AttributeError("'NoneType' object has no attribute 'glGetError'")  # as without libosmesa6


@pytest.mark.parametrize(
    ("suite", "version", "imported", "said"),
    [
        ("dmc", "3.2.0", broken, "needs dm_control: pip install"),
        ("humanoid_bench", "3.2.0", broken, "3.2.0 is installed"),
        ("humanoid_bench", "3.1.6", broken, r"humanoid_bench\.dmc_deps.* install --no-deps -e humanoid-bench"),
        ("humanoid_bench", "3.1.6", blind, r"does not work \(with MUJOCO_GL=osmesa: AttributeError: .*libosmesa6"),
    ],
)
def test_packages_that_are_absent_or_other_versions_are_named(
    suite: str, version: str, imported: Callable[[str], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control.metadata, "version", lambda name: version)
    monkeypatch.setattr(control.importlib, "import_module", imported)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(ConfigError, match=said):
        Control(suite, "h1-walk-v0").make()


def test_an_environment_without_a_time_limit_is_refused() -> None:
    environment = Environment("env.task=count", Count(7, True))
    with pytest.raises(ConfigError, match=r"env.task=count has no time limit: .* env.options=.max_episode_steps"):
        control.decisions_at_most(environment, 1)
