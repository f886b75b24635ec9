"""Real faults, made by the system: training continues or stops with one clear line, and nothing kept is lost."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.sources import wandb_local
from harness.config.errors import TrainingError
from harness.program.messages import exit_code
from rl.common.environments import Environment
from tests import faults
from tests.programs import (
    DQN,
    LONG,
    SAC,
    SMALL,
    VISION,
    Program,
    assert_same,
    final_state,
    only_run,
    rows,
    wait_for,
    wait_until_held,
)
from tests.zygote import Zygote

OFTEN = "checkpoint.every_seconds=0.05"
WANDB = SMALL.tiny(*LONG, "tracker=wandb_offline")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    with faults.small_disk(tmp_path / "disk", 4) as folder:
        yield folder


def test_a_disk_that_is_full_for_a_while(disk: Path, tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    options = SMALL.tiny(*LONG, "checkpoint.every_seconds=0", "paths.runs=disk/runs")
    child = zygote.start(tmp_path, "vision.train", *options, before="holds", HOLD_AT="2,4")  # within the first phase
    wait_until_held(child)
    filler = faults.fill(disk)
    os.kill(child, signal.SIGCONT)
    wait_until_held(child)  # rows and checkpoints have found no room
    filler.unlink()
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == 0, answer.err
    assert "No space left on device" in answer.err
    assert_same(only_run(disk / "runs"), calm)


def test_a_disk_that_is_full_when_the_first_phase_ends(disk: Path, tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    options = SMALL.tiny(*LONG, OFTEN, "paths.cache=disk/cache")
    child = zygote.start(tmp_path, "vision.train", *options, before="holds")
    wait_until_held(child)
    filler = faults.fill(disk)
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == 3
    assert "error: cannot write the checkpoint that ends phase 0 in disk/cache/" in answer.err
    filler.unlink()
    again = zygote.run(tmp_path, "vision.train", *options)
    assert again.code == 0, again.err
    assert_same(only_run(tmp_path / "runs"), calm)


def test_read_only_output(disk: Path, tmp_path: Path, zygote: Zygote) -> None:
    faults.make_read_only(disk)
    answer = zygote.run(tmp_path, "vision.train", *SMALL.tiny("paths.runs=disk/runs", "method=base,fire", "-m"))
    assert answer.code == 2
    assert "error: " in answer.err
    assert "Read-only file system" in answer.err
    assert "Traceback" not in answer.err


def test_a_loss_that_explodes(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"^the loss.* is not finite at step 1; .*Lower lr=") as error:
        SMALL.run(tmp_path, "lr=1e30", "cache=off", "checkpoint.every_seconds=0")
    assert exit_code(error.value) == 3
    assert "\n" not in str(error.value)
    run = only_run(tmp_path)
    assert (run / "FAILED").read_text().startswith("Diverged: ")
    assert not (run / "DONE").exists()
    weights = final_state(run)["modules"]["model"].values()
    assert all(torch.isfinite(value).all() for value in weights), "the last good one"


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (DQN, "lr=1e30"),
        (SAC, "lr=1e30 env=hopper random_steps=20 eval_every=1000"),
        (SAC, "lr=1e30 env=hopper random_steps=20 networks=mlp num_envs=2 eval_every=1000"),
    ],
)
def test_an_agent_that_diverges_is_not_its_environments_fault(
    program: Program, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, taken = Environment.step, list[float]()

    def step(environment: Environment, action: Any) -> Any:
        taken.append(float(np.sum(action)))
        return plain(environment, action)

    monkeypatch.setattr(Environment, "step", step)
    with pytest.raises(TrainingError, match=r"^the loss.* is not finite at step \d+; .*Lower lr=$"):
        program.run(tmp_path, *options.split(), "cache=off")
    assert len(taken) > 20
    assert np.isfinite(taken).all()


def test_out_of_memory(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", *VISION.tiny("model.width=700"), before="little_memory")
    assert answer.code == 3
    assert answer.err.startswith("error: out of memory (")
    assert "lower batch_size=" in answer.err
    assert answer.err.count("\n") == 1


def child_of(process: int, words: str) -> int:
    """The child process whose command line holds these words, when it is there."""
    children = Path(f"/proc/{process}/task/{process}/children")
    return wait_for(lambda: next((int(c) for c in children.read_text().split() if words in command(int(c))), 0))


def command(process: int) -> str:
    """A process's command line; empty if there is none."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_wandb_mirrors_every_row(tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    answer = zygote.run(tmp_path, "vision.train", *WANDB)
    assert answer.code == 0
    assert "wandb" not in answer.err
    assert_same(only_run(tmp_path / "runs"), calm)
    (mirrored,) = tmp_path.glob("runs/vision/*/wandb/offline-run-*/*.wandb")
    run = wandb_local.read_run([mirrored])
    assert run.finished
    assert run.config["method"]["name"] == "fire"
    plain = [row for row in rows(calm) if "kind" not in row]
    for key in ("step", "train/loss", "test/accuracy"):
        assert run.history[key].tolist() == [row[key] for row in plain]
    (boundary,) = [row for row in rows(calm) if row.get("kind") == "boundary"]
    for key in ("step", "phase", "boundary/dfi_after", "boundary/sfe"):
        assert run.boundaries[key].tolist() == [boundary[key]]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "fault"), [("mirror", "SIGKILL"), ("service", "SIGSTOP")])
def test_wandb_dies_or_hangs(who: str, fault: str, tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    child = zygote.start(tmp_path, "vision.train", *WANDB, "tracker.patience=2", before="holds")
    wait_until_held(child)  # training waits here for wandb, as it never does
    mirror = child_of(child, "wandb_mirror")
    service = child_of(mirror, "wandb-core")
    os.kill(mirror if who == "mirror" else service, signal.Signals[fault])
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == 0, answer.err
    assert answer.err.count("wandb stopped (") == 1, answer.err
    assert_same(only_run(tmp_path / "runs"), calm)
    for process in (mirror, service):
        wait_for(lambda process=process: "wandb" not in command(process))
