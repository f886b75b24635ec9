"""Many runs as jobs: how each ends, what a failure and a kill leave, and that numbers do not depend on the workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config.errors import ConfigError
from harness.run.jobs import Ended, Job, run_jobs
from tests.programs import alive, assert_same, lines, wait_for
from tests.zygote import ROOT

TINY = ("scale=smoke", "tracker=none", "progress=false", "benchmark.tasks=2", "benchmark.samples=64", "model.hidden=8")
PROGRAM = """
import sys
from pathlib import Path
from harness.run.jobs import Job, run_jobs
if __name__ == "__main__":
    folder, options = sys.argv[1], tuple(sys.argv[2:])
    for ended in run_jobs((Job("vision", (*options, f"paths.runs={folder}", f"seed={seed}")) for seed in (1, 2)), 2):
        print(ended.state, flush=True)
"""


def job(folder: Path, *options: str) -> Job:
    return Job("vision", (*TINY, f"paths.runs={folder}", *options))


def test_jobs_end_as_runs_alone_and_diverged_ones_leave_the_others(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "epochs=3", *options.split()) for options in ("seed=1", "seed=2 lr=1e30", "seed=3")]
    ended = list(run_jobs(jobs, workers=1))
    assert [one.state for one in ended] == ["done", "diverged", "done"]
    assert [one.job for one in ended] == jobs
    assert all((one.folder / "DONE").exists() == (one.state == "done") for one in ended)
    assert all(one.seconds > 0 for one in ended)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_cannot_run_is_named_and_no_other_is_begun(tmp_path: Path, workers: int) -> None:
    begun = list[int]()

    def jobs() -> "list[Job]":
        return [job(tmp_path, "method=fires"), *(job(tmp_path, f"seed={seed}") for seed in range(9))]

    def taken():  # type: ignore[no-untyped-def]
        for one in jobs():
            begun.append(1)
            yield one

    with pytest.raises(ConfigError, match=r"method=fires: .*'method/fires'|method=fires.* is unknown"):
        list(run_jobs(taken(), workers))
    assert len(begun) <= 2 + workers


def test_numbers_and_folders_do_not_depend_on_the_workers_and_a_first_phase_is_trained_once(tmp_path: Path) -> None:
    def together(folder: Path, workers: int) -> dict[str, Ended]:
        jobs = [job(folder, f"method={method}", f"seed={seed}") for seed in (1, 2) for method in ("base", "fire")]
        return {ended.folder.name: ended for ended in run_jobs(jobs, workers)}

    one, two = together(tmp_path / "one", 1), together(tmp_path / "two", 2)
    assert one.keys() == two.keys()
    assert len(one) == 4
    for name in one:
        assert_same(one[name].folder, two[name].folder)
    assert len([entry for entry in (tmp_path / "two/.cache").iterdir() if (entry / "DONE").exists()]) == 2


@pytest.mark.parametrize(
    "whom", [pytest.param("group", marks=pytest.mark.slow), "parent", pytest.param("killed", marks=pytest.mark.slow)]
)
def test_an_interrupt_or_a_kill_leaves_runs_that_the_same_jobs_resume(tmp_path: Path, whom: str) -> None:
    """No worker stays; finished runs are skipped."""
    options = [*TINY, "epochs=4000", "cache=off", "benchmark.samples=1024", "checkpoint.every_seconds=1000"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, program, tmp_path / "runs", *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as parent:
        wait_for(lambda: lines(tmp_path / "runs", "vision/*-s1-*") and lines(tmp_path / "runs", "vision/*-s2-*"))
        if whom == "group":
            os.killpg(parent.pid, signal.SIGINT)
        else:
            os.kill(parent.pid, signal.SIGINT if whom == "parent" else signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not alive(parent.pid), 30)
    runs = list((tmp_path / "runs/vision").iterdir())
    assert len(runs) == 2
    for run in runs:
        assert not (run / "DONE").exists()
        assert not (run / "FAILED").exists()
        assert list((run / "checkpoints").iterdir()), "no checkpoint was written before it left"


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    (first,) = run_jobs([job(tmp_path)], workers=1)
    made = (first.folder / "DONE").stat().st_mtime_ns
    (again,) = run_jobs([job(tmp_path)], workers=1)
    assert (again.folder, again.state) == (first.folder, "done")
    assert (again.folder / "DONE").stat().st_mtime_ns == made
    assert json.loads((again.folder / "DONE").read_text())["seconds"] > 0
