"""Videos of agents."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.config.errors import ConfigError
from harness.run.reader import read_run
from rl import watch
from rl.dqn import watch as watch_dqn
from tests.programs import ATARI, DQN, compose

PROGRAMS = ("dqn", "sac")


@pytest.mark.parametrize("extra", [(), ("env.sticky_per=frame",)])
def test_the_picture_is_of_the_game_that_the_agent_plays(tmp_path: Path, extra: tuple[str, ...]) -> None:
    """Made grey and small, each coloured picture is the frame that the agent sees, over several episodes."""
    folder = ATARI.run(
        tmp_path, "method=pi", "total_steps=60", "midpoint=30", "log_every=30", "eval.every=60", "eval.steps=4", *extra
    )
    trained, state = read_run(folder, PROGRAMS)
    seen: list[np.ndarray] = []
    env = watch_dqn.make_env(trained, 1, "watch/0")
    kept = watch_dqn.make_env

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(env, name)

        def begin(self) -> object:
            env.begin()
            seen.append(env.observations[0, -1].numpy().copy())
            return None

        def recv(self) -> object:
            step = env.recv()
            seen.append(step.frames[0].numpy().copy())
            return step

    watch_dqn.make_env = lambda *_: Spy()  # type: ignore[assignment, return-value]
    try:
        pictures, returns = watch_dqn.play(trained, state, compose("watch", "steps=90", "episodes=2"))
    finally:
        watch_dqn.make_env = kept
    assert len(returns) == 2  # cut after 40 decisions
    assert len(pictures) == len(seen) == 81
    for picture, frame in zip(pictures, seen, strict=True):
        assert picture.shape == (210, 160, 3)
        grey = np.asarray(Image.fromarray(picture).convert("L").resize((84, 84), Image.Resampling.BOX), dtype=float)
        assert np.abs(grey - frame).mean() < 3  # ALE's grey has other weights
    watch.write_video(tmp_path / "agent.gif", pictures[:12], 15)
    with Image.open(tmp_path / "agent.gif") as gif:
        assert gif.size == (160, 210)
        assert gif.is_animated


def test_what_cannot_be_shown_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        read_run(tmp_path, PROGRAMS)
    trained, state = read_run(DQN.run(tmp_path), PROGRAMS)
    with pytest.raises(ConfigError, match="no pictures"):
        watch_dqn.play(trained, state, compose("watch"))
    (tmp_path / "config.yaml").write_text("program: dqn")
    with pytest.raises(ConfigError, match="no whole checkpoint"):
        read_run(tmp_path, PROGRAMS)
