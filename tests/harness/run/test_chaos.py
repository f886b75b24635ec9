"""A referee from outside: `ckpt-chaos`, unchanged, kills a run at events of its files and compares what comes back."""

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from language import task
from tests.programs import LANGUAGE, SMALL
from tests.zygote import ROOT, Zygote

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
def test_no_hard_failure_and_no_silent_divergence(name: str, tmp_path: Path, zygote: Zygote) -> None:
    """What is killed are processes of their own; what resumes after a kill, and compares, are children of the zygote.

    Ranks of one run are all processes of their own, as the zygote's children come one after the other.
    """
    points, referee_options, (module, *program_options) = PROGRAMS[name]
    data = tmp_path / "data"
    if module == "language.train":  # else the run without a fault would write them, and the others not
        task.Task.from_config(LANGUAGE.compose(f"paths.data={data}"))
    options = [option.replace("{data}", str(data)) for option in program_options]
    program = ["-m", module, *options, "checkpoint.every_seconds=0", "paths.runs={out}/runs"]
    child = tmp_path / "python"  # see `Zygote.script`
    if "--ranks" not in referee_options:
        referee_options = ("--resume-cmd", shlex.join([str(child), *program]))
    printed = zygote.script(
        tmp_path,
        *(sys.executable, "-m", "ckpt_chaos", "run", "--max-points", str(points), "--work", f"{tmp_path}/work"),
        *("--result-cmd", f"{child} -m tests.harness.run.ending {{out}}/runs"),
        *("--step-regex", r"resumed at step (\d+)", "--timeout", "300", "--jobs", "1", *referee_options),
        *("--", sys.executable, *program),
        PYTHONPATH=str(ROOT),
    )
    assert "PASS" in printed
    print(printed)  # the referee's table: `pytest -s`
