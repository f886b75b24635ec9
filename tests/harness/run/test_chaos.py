"""A referee from outside: `ckpt-chaos`, unchanged, kills a run at events of its files and compares what comes back."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import SMALL
from tests.test_import_direction import ROOT

POINTS = 4  # of some sixty; `--max-points 60` takes all


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ckpt_chaos") is None, reason='pip install -e ".[dev]" brings ckpt-chaos')
def test_no_hard_failure_and_no_silent_divergence(tmp_path: Path) -> None:
    options = SMALL.tiny("method=fire", "checkpoint.every_seconds=0", "paths.runs={out}/runs")
    ending = f"{sys.executable} -m tests.harness.run.ending {{out}}/runs"
    command = [
        sys.executable, "-m", "ckpt_chaos", "run", "--max-points", str(POINTS), "--work", str(tmp_path / "work"),
        "--result-cmd", ending, "--step-regex", r"resumed at step (\d+)", "--timeout", "300", "--jobs", "1",
        "--", sys.executable, "-m", "vision.train", *options,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "PASS" in answer.stdout
