"""Videos of agents, and what is said where nothing can be shown."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.config.errors import ConfigError
from harness.run.reader import read_run
from rl import watch
from tests.programs import ATARI, DQN, SAC, compose, rows

PROGRAMS = ("dqn", "sac")


def test_a_game_is_shown_as_the_agent_sees_it(tmp_path: Path) -> None:
    """Over two episodes, which are cut after 40 decisions."""
    folder = ATARI.run(tmp_path, "method=pi", "total_steps=60", "midpoint=30", "eval.every=60", "eval.steps=4")
    trained, state = read_run(folder, PROGRAMS)
    pictures, returns = watch.play(trained, state, compose("watch", "steps=90", "episodes=2"))
    assert (len(pictures), len(returns)) == (81, 2)
    env = watch.make_env(trained, 1, "watch/0")
    np.testing.assert_array_equal(pictures[0], env.begin()[0])
    watch.write_video(tmp_path / "agent.gif", pictures[:12])
    with Image.open(tmp_path / "agent.gif") as gif:
        assert gif.size == (watch.SIDE, watch.SIDE)
        assert gif.is_animated


def test_a_policy_plays_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an evaluation: with mean actions and the run's statistics; modules that a method has put in come too."""
    folder = SAC.run(tmp_path, "method=pi", "env_steps=120", "eval_every=60", "random_steps=40")
    monkeypatch.setattr(watch, "picture", lambda env: np.zeros((8, 8, 3), np.uint8))
    pictures, returns = watch.play(*read_run(folder, PROGRAMS), compose("watch", "episodes=20", "steps=400"))
    assert len(returns) == 20
    assert len(pictures) > 20
    assert np.mean(returns) == pytest.approx(rows(folder)[-1]["eval/return"], rel=0.3)


def test_what_cannot_be_shown_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, state = read_run(DQN.run(tmp_path, "total_steps=100", "midpoint=50"), PROGRAMS)
    with pytest.raises(ConfigError, match="no pictures"):
        watch.play(trained, state, compose("watch"))

    class Blind:
        def render(self) -> None:
            raise AttributeError("no OpenGL")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(ConfigError, match=r"MUJOCO_GL=osmesa.*now MUJOCO_GL=egl: AttributeError"):
        watch.picture(Blind())
