"""The command line: help, tracebacks and sweeps. Wrong options are in tests/options/test_trouble.py."""

from pathlib import Path

from harness.config.groups import choices
from tests.zygote import Zygote

EXPERIMENTS = choices("experiment")


def test_a_traceback_when_asked_for(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "model.hidden=-1", HYDRA_FULL_ERROR="1")
    assert answer.code != 0
    assert "Traceback" in answer.err


def test_a_sweep_goes_on_past_a_failed_job_and_tells_of_all(tmp_path: Path, zygote: Zygote) -> None:
    options = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4")
    first = zygote.run(tmp_path, "vision.train", *options, "method=snp", "method.coef=7,0.5", "-m")
    table = [line for line in first.err.splitlines() if line.startswith("scale=smoke")]
    assert first.code == 2
    assert "failed    method.coef must be in [0, 1], got 7" in table[0]
    assert "done      task_end/accuracy" in table[1]
    again = zygote.run(tmp_path, "vision.train", *options, "method=snp", "method.coef=0.5,0.6", "-m")
    table = [line for line in again.err.splitlines() if line.startswith("scale=smoke")]
    assert again.code == 0
    assert "skipped   task_end/accuracy" in table[0]
    assert "done      task_end/accuracy" in table[1]
    assert again.err.count("first phase taken from") == 1


def test_help_lists_what_the_program_can_take(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "--help")
    assert answer.code == 0
    groups = dict(line.split(": ", 1) for line in answer.out.split("== ")[1].splitlines()[1:] if ": " in line)
    assert set(groups) == {"method", "dataset", "model", "optimizer", "tracker", "trigger", "benchmark", "experiment"}
    assert groups["benchmark"].startswith("class_incremental, continual, permuted, ")
    assert "cartpole" not in answer.out
    assert "epochs: ${choose:${scale},{smoke:2,small:40,paper:400}}" in answer.out, "of the default benchmark"


def test_the_log_says_which_tuned_values_were_taken(tmp_path: Path, zygote: Zygote) -> None:
    options = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4", "benchmark=warm_start", "method=cbp")
    answer = zygote.run(tmp_path, "vision.train", *options)
    assert answer.err.count("tuned values: conf/tuned_values/vision.yaml, warm_start_digits, cbp") == 1, answer.err
