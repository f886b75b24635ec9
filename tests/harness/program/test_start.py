"""The command line: tracebacks, and options that a part of a sweep lacks. Wrong ones: options/test_trouble.py."""

import sys
from pathlib import Path

import pytest

from harness.config.errors import ConfigError
from harness.program import start
from harness.training.estimate import SWEEP_JOBS
from tests.zygote import Zygote


def test_a_traceback_when_asked_for(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "model.hidden=-1", HYDRA_FULL_ERROR="1")
    assert answer.code != 0
    assert "Traceback" in answer.err


def test_a_sweep_over_an_option_that_base_lacks(tmp_path: Path, zygote: Zygote) -> None:
    options = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4", "benchmark.tasks=2", "epochs=1")
    sweep = ("method=base,fire,optimizer_reset", "method.iterations=1,5", "seed=0,1", "-m")
    answer = zygote.run(tmp_path, "vision.train", *options, *sweep)
    assert answer.code == 0, answer.err
    note = "method.iterations=1,5 left out for method=base,optimizer_reset, without such an option"
    assert answer.err.splitlines()[0] == note
    table = [line for line in answer.err.splitlines() if line.startswith("scale=smoke")]
    assert sorted(line.split(" method=")[1].split(" bench")[0].split("  ")[0].strip() for line in table) == [
        "base seed=0",
        "base seed=1",
        "fire method.iterations=1 seed=0",
        "fire method.iterations=1 seed=1",
        "fire method.iterations=5 seed=0",
        "fire method.iterations=5 seed=1",
        "optimizer_reset seed=0",
        "optimizer_reset seed=1",
    ]
    assert all("  done " in line for line in table), table
    assert len(list((tmp_path / "runs/vision").iterdir())) == 8


def test_a_failed_job_of_one_part_leaves_the_others(tmp_path: Path, zygote: Zygote) -> None:
    options = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4", "benchmark.tasks=2", "epochs=1")
    answer = zygote.run(tmp_path, "vision.train", *options, "method=fire,base", "method.iterations=-1", "-m")
    assert answer.code == 2
    table = [line for line in answer.err.splitlines() if line.startswith("scale=smoke")]
    assert "failed    method.iterations must be in [1, 1000], got -1" in table[0]
    assert "method=base" in table[1]
    assert "  done " in table[1]


def test_of_several_command_lines_the_first_error_is_raised_when_all_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setenv(SWEEP_JOBS, "")
    ran = list[str]()

    def main() -> None:
        ran.append(sys.argv[1])
        raise ConfigError(f"of {sys.argv[1]}")

    with pytest.raises(ConfigError, match=r"^of seed=1$"):
        start.run_sweeps(main, [["seed=1"], ["seed=2"]], [])
    assert ran == ["seed=1", "seed=2"]
