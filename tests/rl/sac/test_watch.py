"""Videos of SAC policies, and what is said where nothing can be drawn."""

from pathlib import Path

import numpy as np
import pytest

import rl.watch  # noqa: F401  registers its options
from harness.config.errors import ConfigError
from harness.run.reader import read_run
from rl.sac import watch as watch_sac
from tests.programs import SAC, compose, rows


@pytest.mark.parametrize("method", ["base", "pi"])
def test_a_policy_plays_and_is_drawn(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an evaluation: with mean actions and the run's statistics."""
    folder = SAC.run(tmp_path, f"method={method}")
    monkeypatch.setattr(watch_sac, "picture", lambda env: np.zeros((8, 8, 3), np.uint8))
    pictures, returns = watch_sac.play(*read_run(folder, ("sac",)), compose("watch", "episodes=20"))
    assert len(returns) == 20
    assert len(pictures) > 20
    evaluated = rows(folder)[-1]["eval/return"]
    assert np.mean(returns) == pytest.approx(evaluated, rel=0.3)


def test_where_nothing_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def render(self) -> None:
            raise AttributeError("no OpenGL")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(ConfigError, match=r"MUJOCO_GL=osmesa.*now MUJOCO_GL=egl: AttributeError"):
        watch_sac.picture(Blind())
