"""How the jobs of a sweep ended, whatever befell their records, and the table of them."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.program import start
from harness.program.outcome import DRIVER, KILLED, Outcome, record_outcome
from harness.program.sweep import SweepTable, take_outcomes
from harness.run.lock import SWEEP_LOG, Owner
from tests.zygote import Zygote


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


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"run": 1, "what": 2}', "\xe4\xff"])
def test_how_a_job_ended_may_be_damaged_and_the_others_are_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while it wrote that, or the disk was full."""
    monkeypatch.setenv(SWEEP_LOG, tempfile.mkdtemp(dir=tmp_path))
    for number in (0, 2):
        record_outcome(number, Outcome(f"seed={number}", "done"))
    (Path(os.environ[SWEEP_LOG]) / "1.json").write_text(text, encoding="latin-1")
    (Path(os.environ[SWEEP_LOG]) / "notes.json").write_text("a file of somebody else's")
    outcomes = take_outcomes()
    assert outcomes is not None
    assert [(outcome.run, outcome.state) for outcome in outcomes] == [
        ("seed=0", "done"), ("job 1", "unknown"), ("seed=2", "done"),
    ]  # fmt: skip


def test_what_other_users_have_left_among_the_sweeps_keeps_nobody_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the sweep's own folder there is no table, and jobs do not leave with their driver."""
    for name in (SWEEP_LOG, DRIVER):  # put back after the test
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
    assert Path(os.environ[SWEEP_LOG]).parent == tmp_path
    assert Owner.parse(os.environ[DRIVER]).process == os.getpid()


@pytest.mark.parametrize(
    ("code", "shown"), [(75, "stopped   start the same command again"), (None, "failed    its process")]
)
def test_jobs_that_outlive_a_stopped_driver_for_a_moment_are_not_called_killed(
    code: int | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in (SWEEP_LOG, DRIVER, "HYDRA_FULL_ERROR", "FIRE_TRACEBACK"):  # put back after the test
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(start, "keep_output", lambda: None)
    monkeypatch.setattr(start, "read_arguments", lambda name: None)
    monkeypatch.setattr(start, "_command_lines", lambda name, arguments: [["-m"]])

    def sweep(*arguments: object) -> None:
        os.environ[SWEEP_LOG] = tempfile.mkdtemp(dir=tmp_path)
        for number in range(2):
            record_outcome(number, Outcome(f"seed={number}", "failed", KILLED))
        if code is not None:
            raise SystemExit(code)

    monkeypatch.setattr(start, "run_sweeps", sweep)
    with contextlib.suppress(SystemExit):
        start.run_program(lambda: None, "vision")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[2].startswith(shown) for line in lines] == [True, True]
