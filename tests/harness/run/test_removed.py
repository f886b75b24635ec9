"""Folders that are removed while programs work in them, and runs that are marked as done without their weights."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from fire_core.tools import runs
from harness.run.lock import FolderLock
from tests.programs import DQN, LANGUAGE, LONG, SAC, VISION, Program, assert_same, only_run, rows, wait_until_held
from tests.zygote import Zygote


@pytest.mark.parametrize(
    "part", [*(pytest.param(part, marks=pytest.mark.slow) for part in ("", "checkpoints")), "metrics.jsonl"]
)
def test_a_cache_removed_under_way_costs_time(part: str, tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    options = VISION.tiny(*LONG, "checkpoint.every_seconds=0.05")
    child = zygote.start(tmp_path, "vision.train", *options, before="holds", HOLD_AT="3")
    wait_until_held(child)
    (entry,) = (tmp_path / "runs" / ".cache").iterdir()
    target = entry / part if part else entry.parent
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == 0, answer.err
    assert "Traceback" not in answer.err
    assert_same(only_run(tmp_path / "runs"), calm)


def test_a_lock_is_lost_with_its_folder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "run")
    assert lock.acquire(), "the folder is made"
    assert not lock.lost
    shutil.rmtree(tmp_path / "run")
    assert lock.lost
    other = FolderLock(tmp_path / "run")
    assert other.acquire(), "another process may begin anew"
    assert not other.lost
    assert lock.lost


@pytest.mark.parametrize("program", [VISION, LANGUAGE, DQN, SAC], ids=lambda program: program.name)
def test_a_run_marked_as_done_without_its_weights_is_finished(program: Program, tmp_path: Path) -> None:
    """Such folders were left by a full disk before."""
    options = ["cache=off", "method=fire", *([f"paths.data={tmp_path}/data"] if program is LANGUAGE else [])]
    folder = program.run(tmp_path, *options)
    before = rows(folder)
    shutil.rmtree(folder / "checkpoints")
    assert program.run(tmp_path, *options) == folder
    assert list((folder / "checkpoints").glob("step-*.pt"))
    assert rows(folder) == before


def test_pruned_weights_were_removed_on_purpose(tmp_path: Path) -> None:
    folder = VISION.run(tmp_path, "cache=off")
    assert runs.main(["--runs", str(tmp_path), "prune", "--checkpoints", "--yes"]) == 0
    assert not (folder / "checkpoints").exists()
    VISION.run(tmp_path, "cache=off")
    assert not (folder / "checkpoints").exists(), "it is done"
