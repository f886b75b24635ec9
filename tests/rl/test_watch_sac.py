"""Animations of SAC policies, and what is said where nothing can be drawn."""

import shutil
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from fire_core.harness.cli import CONF
from fire_core.harness.errors import ConfigError
from rl import watch_sac
from rl.watch_sac import Policy, picture, play
from tests.rl.sac_runs import only_run, rows, run


@pytest.fixture(scope="module", params=["base", "pi"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    run(f"method={request.param}", f"paths.runs={root}")
    return only_run(root)


def options(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("watch_sac", list(overrides))


def test_a_policy_plays_and_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_sac, "picture", lambda env: np.zeros((8, 8, 3), np.uint8))
    policy = Policy(folder, torch.device("cpu"))
    frames, returns = play(policy, options("episodes=3"))
    assert len(frames) >= 3
    low, high = rows(folder)[-1]["eval/return"] / 10, rows(folder)[-1]["eval/return"] * 10
    assert all(low < total < high for total in returns)


def test_where_nothing_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def render(self) -> None:
            raise AttributeError("no OpenGL")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(ConfigError, match=r"MUJOCO_GL=osmesa.*now MUJOCO_GL=egl: AttributeError"):
        picture(Blind())


def test_wrong_folders_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        Policy(tmp_path, torch.device("cpu"))
    shutil.copy(folder / "config.yaml", tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint"):
        Policy(tmp_path, torch.device("cpu"))
    (tmp_path / "config.yaml").write_text("program: vision\n")
    with pytest.raises(ConfigError, match="is of vision"):
        Policy(tmp_path, torch.device("cpu"))
