"""Many runs as jobs in processes of this machine: the driver of searches and studies.

A job trains one run to its end, as `execute` does: a finished run is skipped and an unfinished one is resumed. So the
same jobs, started again, go on where they stopped.
"""

import functools
import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

from harness.config import groups
from harness.config.cli import Outcome, out_of_memory, user_facing
from harness.config.errors import ConfigError, TrainingError, one_line
from harness.run.execute import new_run, run_to_end
from harness.run.gpus import own_gpu
from harness.run.programs import program_of
from harness.run.workers import Lost, Workers
from harness.training.console import show_log
from harness.training.signals import EXIT_PREEMPTED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One run: the name of its program, and options as on the command line."""

    program: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        job: which job it was.
        state: "done", "diverged" or "failed", which leaves `run_jobs` as an exception.
        folder: of the run.
        seconds: of processor time that the run took in this call, without imports and the reading of options.
        error: what a job that failed, or was stopped by a signal, raises in the end.
    """

    job: Job
    state: str
    folder: Path = Path()
    seconds: float = 0.0
    error: BaseException | None = None


def compose(program: str, options: Sequence[str]) -> Any:
    """The configuration of a program with these options."""
    program_of(program)  # makes the types of its options known to Hydra
    return groups.compose(program, options)


def run_jobs(jobs: Iterable[Job], workers: int | None = None) -> Iterator[Ended]:
    """Run jobs side by side, each with one thread, and yield each as it ends.

    Ctrl-C, and the end of this process in any way, makes the workers write checkpoints and leave.

    Args:
        jobs: taken one by one, as workers become free.
        workers: how many processes, each of which imports the programs once; as many as cores if left out. One worker
            is this process itself.

    Yields:
        The jobs that are done, and those that diverged, which leave the others as they are.

    Raises:
        ConfigError: a job cannot be run. It is raised when the jobs that were running have ended; none is begun after.
        RuntimeError: a job failed in another way, with its traceback; also when the others have ended.
        TrainingError: a worker was killed. It is raised at the end: all other jobs have been run.
        SystemExit: a job, or this process, was stopped by a signal.
    """
    workers, waiting = workers or joblib.cpu_count(), iter(jobs)
    failed, lost = list[BaseException](), list[TrainingError]()

    def until_one_fails() -> Iterator[Job]:
        while not failed:
            try:
                yield next(waiting)
            except StopIteration:
                return

    for job, ended in do_jobs(until_one_fails(), workers):
        if isinstance(ended, Lost):
            lost.append(TrainingError(f"{' '.join(job.options)}: {ended}"))
            log.error("%s", lost[-1])
        elif ended.error is not None:
            failed.append(ended.error)
        else:
            yield ended
    if failed or lost:
        raise [*failed, *lost][0]


def do_jobs(jobs: Iterator[Job], workers: int) -> Iterator[tuple[Job, "Ended | Lost"]]:
    """Each job and how it ended; in this process where one worker is asked for."""
    if workers == 1:
        yield from ((job, run_job(job)) for job in jobs)
        return
    pool = Workers(workers)
    yield from pool.map(run_job, jobs)
    pool.close()


def run_job(job: Job) -> Ended:
    """Train the run of a job to its end in this process."""
    show_log()
    name, ending = " ".join(job.options), functools.partial(Ended, job)
    try:
        config, program = compose(job.program, job.options), program_of(job.program)
        began = time.process_time()
        with own_gpu(config.device, config.jobs_per_gpu) as config.device:
            task = program.make_task(config)
            folder, state = new_run(config, program, task, None).folder, "done"
            try:
                run_to_end(config, program, task, Outcome(""))
            except TrainingError as error:
                if error.__cause__ is not None:  # no room for a checkpoint, say
                    raise
                state = "diverged"
        return ending(state, folder, time.process_time() - began)
    except (SystemExit, KeyboardInterrupt):
        return ending("failed", error=SystemExit(EXIT_PREEMPTED))
    except Exception as error:
        known = out_of_memory(error) or error
        if user_facing(known):
            return ending("failed", error=ConfigError(f"{name}: {one_line(known)}"))
        return ending("failed", error=RuntimeError(f"{name}:\n{traceback.format_exc()}"))
