"""Tiny runs of `rl.dqn`, in this process."""

from pathlib import Path
from typing import Any

import hydra
import torch

from fire_core.harness.options.cli import CONF, Outcome
from fire_core.harness.run.execute import run_to_end
from rl.dqn.train import PROGRAM

TINY = (
    "tracker=none", "progress=false", "scale=smoke", "env=cartpole", "num_envs=2", "model.hidden=16",
    "total_steps=400", "midpoint=200", "learning_starts=40", "target_every=50", "batch_size=8", "log_every=40",
    "eval.every=100", "eval.steps=40", "eval.num_envs=2", "replay.capacity=200", "replay.segment=16",
)  # fmt: skip
# Pixels, and a limit that cuts episodes.
ATARI = (
    "tracker=none", "progress=false", "scale=smoke", "env=asterix", "num_envs=2", "model.width=0.125",
    "env.max_frames=160", "total_steps=240", "midpoint=120", "learning_starts=20", "target_every=50", "batch_size=8",
    "log_every=40", "eval.every=120", "eval.steps=40", "eval.num_envs=2", "replay.capacity=120", "replay.segment=16",
    "env.threads=1",
)  # fmt: skip


def compose(*overrides: str, base: tuple[str, ...] = TINY) -> Any:
    """The resolved config for these overrides."""
    named = {override.split("=")[0] for override in overrides}
    kept = [option for option in base if option.split("=")[0] not in named]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("dqn", [*kept, *overrides])


def run(runs: Path, *overrides: str, base: tuple[str, ...] = TINY) -> Path:
    """Train to the end; the run's folder."""
    config = compose(*overrides, f"paths.runs={runs}", base=base)
    run_to_end(config, PROGRAM, PROGRAM.make_task(config), Outcome(""))
    (folder,) = (runs / "dqn").glob(f"*-{config.method.name}-s{config.seed}-*")
    return folder


def weights(folder: Path) -> dict[str, Any]:
    """The networks of the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    state = torch.load(newest, weights_only=True)["state"]["trainer"]
    return {key: state[key] for key in ("q", "target", "init", "optimizer")}
