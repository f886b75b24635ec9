"""A log that cannot be written ends no run and hides no exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")


def run(*options: str, cwd: Path) -> int:
    with Path("/dev/full").open("w") as log:
        command = [sys.executable, "-m", "vision.train", "scale=smoke", "tracker=none", *options]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=cwd, stdout=log, stderr=log, env=environ, timeout=300).returncode


@full
def test_a_run_ends_well_though_its_log_is_on_a_full_disk(tmp_path: Path) -> None:
    assert run("method=fire", "progress=true", "benchmark.tasks=2", cwd=tmp_path) == 0
    assert list(tmp_path.rglob("DONE"))


@full
@pytest.mark.slow
def test_a_wrong_option_keeps_its_exit_code(tmp_path: Path) -> None:
    assert run("method=firee", cwd=tmp_path) == 2
