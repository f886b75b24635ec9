"""MinAtar's games as environments of DQN. Needs the optional package, under the GPL, which the project only imports."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.config.errors import ConfigError
from rl.dqn.changing import Changing
from rl.dqn.learner import Learner
from rl.dqn.minatar import GAMES, MinAtar, make
from rl.dqn.task import Task
from tests.programs import DQN, Program, rows

STREAM = (
    "experiment=continual_minatar", "num_envs=2", "benchmark.tasks=3", "benchmark.steps=60", "total_steps=180",
    "learning_starts=20", "replay.capacity=200", "model.filters=4", "eval.episodes=1", "eval.epsilon=1.0",
)  # fmt: skip


def compose(*options: str) -> Any:
    return Program("dqn", "rl.dqn", tuple(o for o in DQN.options if not o.startswith("env="))).compose(*options)


def test_frames_are_those_of_the_games() -> None:
    """Against a game of the package itself, with the same seed and actions."""
    minatar = pytest.importorskip("minatar")
    for name in GAMES:
        emulator = MinAtar(name, 1)
        for seed in (3, 5):  # the second episode begins as if it were the first of its seed
            frames = emulator.reset([0], [seed])
            game = minatar.Environment(name)
            game.seed(seed)
            game.reset()
            for t in range(60):
                np.testing.assert_array_equal(frames[0].transpose(1, 2, 0), game.state())
                emulator.send(np.array([t % 6]))
                frames, rewards, ends, truncated = emulator.recv()
                reward, end = game.act(t % 6)
                assert (rewards[0], ends[0], truncated[0]) == (reward, end, False)
                if end:
                    break
        assert (emulator.actions, emulator.frame[1:]) == (6, (10, 10))


def test_episodes_are_cut_and_repeat() -> None:
    pytest.importorskip("minatar")
    env = make(2, 0, "train", "freeway", max_frames=30)
    env.begin()
    ended = []
    for t in range(70):
        env.send(torch.tensor([t % 6, 2]))
        step = env.recv()
        assert not step.terminated.any()
        ended += [t] * len(step.ended)
    assert ended == [29, 29, 59, 59]
    again = make(2, 0, "train", "freeway", max_frames=30)
    assert again.load_state_dict(env.state_dict())


def test_games_with_other_channels_take_turns() -> None:
    pytest.importorskip("minatar")
    task = Task.from_config(compose(*STREAM))
    learner = Learner.new(task)
    emulator = learner.env.emulator
    assert isinstance(emulator, Changing)
    assert (emulator.frame, emulator.actions) == ((10, 10, 10), 6)  # seaquest's ten channels
    for phase, channels in enumerate((6, 4, 10)):
        emulator.begin_task(phase)
        shown, own = learner.env.begin(), emulator.current.reset([0], [learner.env.seed_of(0, phase)])
        np.testing.assert_array_equal(shown[0, :channels], own[0])
        assert not shown[:, channels:].any()


def test_a_stream_of_games_trains(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    folder = Program("dqn", "rl.dqn", DQN.options).run(tmp_path, *STREAM, "env=minatar_space_invaders", "method=fire")
    ends = [*{row["phase"]: row for row in rows(folder) if "kind" not in row}.values()]  # the last row of each task
    assert [row["phase"] for row in ends] == [0, 1, 2]
    assert any("task/return" in row for row in ends), "no episode ended late in any task"
    assert not any("eval/normalized_return" in row for row in ends)  # Atari's scores of the same names are others
    assert all(0 <= row["plasticity/dormant_ratio"] <= 1 for row in ends)


def test_the_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(ConfigError, match=r"^env=minatar_asterix needs the package minatar: pip install minatar$"):
        make(1, 0, "train", "asterix")
