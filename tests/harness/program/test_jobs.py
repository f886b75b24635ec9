"""Many runs as jobs: how each ends, what a failure and a kill leave, and that numbers do not depend on the workers."""

import errno
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from harness.config.errors import ConfigError, TrainingError
from harness.program.jobs import Job, run_job, run_jobs
from harness.run.folder import Run
from harness.run.lock import Lock
from tests.programs import alive, assert_same, lines, wait_for
from tests.zygote import Zygote

TINY = ("scale=smoke", "tracker=none", "progress=false", "benchmark.tasks=2", "benchmark.samples=64", "model.hidden=8")
PROGRAM = """
import sys
from harness.program.jobs import Job, run_jobs
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
    made = (ended[0].folder / "DONE").stat().st_mtime_ns
    (again,) = run_jobs(jobs[:1], workers=1)
    assert (again.folder, again.state) == (ended[0].folder, "done")
    assert (again.folder / "DONE").stat().st_mtime_ns == made, "a finished run is skipped"


def test_a_run_that_another_process_trains_is_waited_for(tmp_path: Path) -> None:
    """As of two searches side by side that share a trial; the other's result is taken."""
    (once,) = run_jobs([job(tmp_path, "seed=1")], workers=1)
    with ThreadPoolExecutor(1) as pool, Lock(once.folder / ".lock"):
        again = pool.submit(run_job, job(tmp_path, "seed=1"))
        wait([again], timeout=0.5)
        assert not again.done()
    assert again.result().state == "done"


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error", "file"), MemoryError(), TrainingError("cannot read file")]
)
def test_a_job_that_the_system_stops_costs_that_job_alone(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Run.resume

    def resume(run: Run, *arguments: Any) -> Any:
        if "-s1-" in run.folder.name and run.folder.parent.name == "vision":
            raise error
        return real(run, *arguments)

    monkeypatch.setattr(Run, "resume", resume)
    ended = list[str]()
    with pytest.raises(TrainingError, match="seed=1: ") as raised:
        ended.extend(one.state for one in run_jobs([job(tmp_path, f"seed={seed}") for seed in range(3)], workers=1))
    assert ended == ["done"] * 2, "neither the ones before nor those after it are lost"
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    assert [one.state for one in run_jobs([job(tmp_path, "seed=1")], workers=1)] == ["done"]


@pytest.mark.slow
def test_in_workers_numbers_are_the_same_and_a_job_that_cannot_run_is_the_last_begun(tmp_path: Path) -> None:
    """The workers share a first phase, and are started once for all that is asked of them here."""
    begun, ended = list[Job](), list[Path]()

    def taken() -> Iterator[Job]:
        for options in ("method=base", "method=fire", "method=fires", *(f"seed={seed}" for seed in range(90))):
            begun.append(job(tmp_path / "two", *options.split()))
            assert len(begun) - len(ended) <= 2, "the next one is taken when a worker is free"
            yield begun[-1]

    with pytest.raises(ConfigError, match=r"method=fires: .*'method/fires'|method=fires.* is unknown"):
        ended.extend(one.folder for one in run_jobs(taken(), workers=2))
    assert len(begun) < 30  # five, but where the worker that cannot run its job gets no processor
    (entry,) = (tmp_path / "two/.cache").glob("*-s0-*")
    assert (entry / "DONE").exists()
    for one in run_jobs([job(tmp_path / "one", f"method={method}") for method in ("base", "fire")], workers=1):
        assert_same(one.folder, tmp_path / "two/vision" / one.folder.name)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["parent", "killed"])
def test_an_interrupt_or_a_kill_leaves_runs_that_the_same_jobs_resume(
    tmp_path: Path, whom: str, zygote: Zygote
) -> None:
    """No worker stays; runs in progress have written checkpoints."""
    options = [*TINY, "epochs=4000", "cache=off", "benchmark.samples=1024", "checkpoint.every_seconds=1000"]
    (tmp_path / "program.py").write_text(PROGRAM)  # run beside the test
    parent = zygote.start(tmp_path, "program", f"{tmp_path}/runs", *options, before="forks_workers")
    wait_for(lambda: lines(tmp_path / "runs", "vision/*-s1-*") and lines(tmp_path / "runs", "vision/*-s2-*"))
    os.kill(parent, signal.SIGINT if whom == "parent" else signal.SIGKILL)
    zygote.wait(parent)
    wait_for(lambda: not alive(parent))
    runs = list((tmp_path / "runs/vision").iterdir())
    assert len(runs) == 2
    for run in runs:
        assert not (run / "DONE").exists()
        assert not (run / "FAILED").exists()
        assert list((run / "checkpoints").iterdir()), "no checkpoint was written before it left"
