"""Tiny runs of `rl.sac`, in this process or in children that can be killed."""

import json
from pathlib import Path
from typing import Any

import hydra
import torch

from fire_core.harness.options.cli import CONF, Outcome
from fire_core.harness.run.execute import run_to_end
from rl.sac.train import PROGRAM
from tests.harness import runner

TINY = ("scale=smoke", "tracker=none", "progress=false", "env=double_pendulum", "env_steps=400", "eval_every=100")
TINY += ("batch_size=16", "metrics=off")
CLOCKS = {"seconds", "method/seconds", "seconds/waiting", "waited"}


def compose(*overrides: str) -> Any:
    """The resolved SAC config for these overrides."""
    named = {override.split("=")[0] for override in overrides}
    options = [option for option in TINY if option.split("=")[0] not in named]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("sac", [*options, *overrides])


def run(*overrides: str) -> dict[str, Any]:
    """Train in this process; the summary."""
    config = compose(*overrides)
    return run_to_end(config, PROGRAM, PROGRAM.make_task(config), Outcome(""))


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, without clocks."""
    return [without_clocks(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_clocks(state: Any) -> Any:
    """Nested dicts less what differs from run to run."""
    if isinstance(state, dict):
        return {key: without_clocks(value) for key, value in state.items() if key not in CLOCKS}
    return state


def final_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    state: dict[str, Any] = without_clocks(torch.load(newest, weights_only=True)["state"]["trainer"])
    return state


def only_run(runs: Path) -> Path:
    """The one run folder below `runs`."""
    (folder,) = (runs / "sac").iterdir()
    return folder


def assert_same(one: Path, other: Path) -> None:
    """Same name, same rows with no hole and no duplicate, same final state and replay bit for bit."""
    assert one.name == other.name
    assert rows(one) == rows(other)
    steps = [(row["step"], "kind" in row) for row in rows(one)]  # a boundary's row comes after that of its step
    assert steps == sorted(set(steps))
    assert runner.same(final_state(one), final_state(other))
    for name in final_state(one)["replay"]["segments"]:  # named by their content
        assert (one / "replay" / name).read_bytes() == (other / "replay" / name).read_bytes()
