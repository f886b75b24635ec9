"""The command line: help, tracebacks and sweeps. Wrong options are in tests/options/test_trouble.py."""

import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.config import cli
from harness.config.cli import Outcome, SweepTable, record_outcome
from harness.config.errors import ConfigError
from harness.config.groups import choices
from harness.run.lock import Owner
from tests.programs import start_here
from tests.zygote import Zygote

EXPERIMENTS = choices("experiment")


def test_a_traceback_when_asked_for(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "model.hidden=-1", HYDRA_FULL_ERROR="1")
    assert answer.code != 0
    assert "Traceback" in answer.err


def test_a_sweep_goes_on_past_a_failed_job_and_tells_of_all(tmp_path: Path, zygote: Zygote) -> None:
    options = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4", "benchmark.tasks=2", "epochs=1")
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


def test_help_lists_what_the_program_can_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start_here("vision", ["--help"], monkeypatch) == 0
    shown = capsys.readouterr().out
    groups = dict(line.split(": ", 1) for line in shown.split("== ")[1].splitlines()[1:] if ": " in line)
    assert set(groups) == {
        "method",
        "dataset",
        "model",
        "optimizer",
        "tracker",
        "trigger",
        "benchmark",
        "tuned",
        "experiment",
    }
    listed = " ".join(shown.split("== ")[1].split())
    assert re.search(r"\bbenchmark: class_incremental, continual, ", listed)
    assert re.search(r"\bmethod: adamo, base, ([\w]+, )*chain, ([\w]+, )*weight_decay\b", listed)
    assert "parts_of_chain" not in listed
    assert "cartpole" not in shown
    assert "epochs: ${choose:${scale},{smoke:2,small:40,paper:400}}" in shown, "of the default benchmark"


def test_the_log_says_which_tuned_values_were_taken(tmp_path: Path, zygote: Zygote) -> None:
    few = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4", "epochs=1")
    answer = zygote.run(tmp_path, "vision.train", *few, "benchmark=warm_start", "method=cbp")
    assert answer.err.count("tuned values: conf/tuned/values/warm_start_digits/cbp.yaml") == 1, answer.err


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


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"run": 1, "what": 2}', "\xe4\xff"])
def test_how_a_job_ended_may_be_damaged_and_the_others_are_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while it wrote that, or the disk was full."""
    monkeypatch.setenv(cli.SWEEP_LOG, tempfile.mkdtemp(dir=tmp_path))
    for number in (0, 2):
        record_outcome(number, Outcome(f"seed={number}", "done"))
    (Path(os.environ[cli.SWEEP_LOG]) / "1.json").write_text(text, encoding="latin-1")
    (Path(os.environ[cli.SWEEP_LOG]) / "notes.json").write_text("a file of somebody else's")
    outcomes = cli.take_outcomes()
    assert outcomes is not None
    assert [(outcome.run, outcome.state) for outcome in outcomes] == [
        ("seed=0", "done"), ("job 1", "unknown"), ("seed=2", "done"),
    ]  # fmt: skip


def test_what_a_full_disk_refuses_leaves_the_line_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cli.SWEEP_LOG, str(tmp_path))
    record_outcome(0, Outcome("seed=0", "failed", cli.KILLED))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    record_outcome(0, Outcome("seed=0", "done"))
    assert json.loads((tmp_path / "0.json").read_text())["result"] == cli.KILLED


def test_what_other_users_have_left_among_the_sweeps_keeps_nobody_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the sweep's own folder there is no table, and jobs do not leave with their driver."""
    for name in (cli.SWEEP_LOG, cli.DRIVER):  # put back after the test
        monkeypatch.setenv(name, "")
    (tmp_path / "tmpfile").write_text("not a folder")
    (tmp_path / "tmpother").mkdir()
    real = Owner.read

    def read(file: Path) -> Owner | None:
        if file.parent.name == "tmpother":
            raise PermissionError(13, "Permission denied", str(file))
        return real(file)

    monkeypatch.setattr(Owner, "read", read)
    SweepTable().on_multirun_start(OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}}))
    assert Path(os.environ[cli.SWEEP_LOG]).parent == tmp_path
    assert Owner.parse(os.environ[cli.DRIVER]).process == os.getpid()


@pytest.mark.parametrize(
    ("code", "shown"), [(75, "stopped   start the same command again"), (None, "failed    its process")]
)
def test_jobs_that_outlive_a_stopped_driver_for_a_moment_are_not_called_killed(
    code: int | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in (cli.SWEEP_LOG, cli.DRIVER, "HYDRA_FULL_ERROR", "FIRE_TRACEBACK"):  # put back after the test
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(cli, "keep_output", lambda: None)
    monkeypatch.setattr(cli, "read_arguments", lambda name: None)
    monkeypatch.setattr(cli, "_command_lines", lambda name, arguments: [["-m"]])

    def sweep(*arguments: object) -> None:
        os.environ[cli.SWEEP_LOG] = tempfile.mkdtemp(dir=tmp_path)
        for number in range(2):
            record_outcome(number, Outcome(f"seed={number}", "failed", cli.KILLED))
        if code is not None:
            raise SystemExit(code)

    monkeypatch.setattr(cli, "run_sweeps", sweep)
    with contextlib.suppress(SystemExit):
        cli.run_program(lambda: None, "vision")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[2].startswith(shown) for line in lines] == [True, True]


def test_of_several_command_lines_the_first_error_is_raised_when_all_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setenv(cli.SWEEP_JOBS, "")
    ran = list[str]()

    def main() -> None:
        ran.append(sys.argv[1])
        raise ConfigError(f"of {sys.argv[1]}")

    with pytest.raises(ConfigError, match=r"^of seed=1$"):
        cli.run_sweeps(main, [["seed=1"], ["seed=2"]], [])
    assert ran == ["seed=1", "seed=2"]
