"""A referee from outside: `ckpt-chaos`, unchanged, kills a run at events of its files and compares what comes back."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from language import task
from tests.programs import LANGUAGE, SMALL
from tests.test_import_direction import ROOT

PROGRAMS = {  # the points of some sixty that are taken (`--max-points 60` takes all), and what is run
    "vision": (4, (), ("vision.train", *SMALL.tiny("method=fire"))),
    "two processes of language": (
        2,
        ("--ranks", "2"),
        (
            "language.train",
            *LANGUAGE.tiny(
                "method=fire", "accumulation=2", "benchmark.iterations=[6,6]", "benchmark.checkpoints=[3]",
                "paths.data={data}",
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ckpt_chaos") is None, reason='pip install -e ".[dev]" brings ckpt-chaos')
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_hard_failure_and_no_silent_divergence(name: str, tmp_path: Path) -> None:
    points, referee_options, (module, *program_options) = PROGRAMS[name]
    data = tmp_path / "data"
    if module == "language.train":  # else the run without a fault would write them, and the others not
        task.Task.from_config(LANGUAGE.compose(f"paths.data={data}"))
    options = [option.replace("{data}", str(data)) for option in program_options]
    ending = f"{sys.executable} -m tests.harness.run.ending {{out}}/runs"
    command = [
        sys.executable, "-m", "ckpt_chaos", "run", "--max-points", str(points), "--work", str(tmp_path / "work"),
        "--result-cmd", ending, "--step-regex", r"resumed at step (\d+)", "--timeout", "300", "--jobs", "1",
        *referee_options,
        "--", sys.executable, "-m", module, *options, "checkpoint.every_seconds=0", "paths.runs={out}/runs",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "PASS" in answer.stdout
    print(answer.stdout)  # the referee's table: `pytest -s`
