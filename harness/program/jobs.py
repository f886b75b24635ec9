"""Train many runs as jobs in processes of this machine, for searches and studies.

A job trains one run to its end, as `execute` does: a finished run is skipped and an unfinished one is resumed. Jobs
that were stopped can therefore be started again as they are. A run that another process trains at the moment, such as
another search's, is waited for.
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
from harness.config.errors import EXIT_TRAINING, ConfigError, Diverged, TrainingError, first_line
from harness.process.console import show_log
from harness.process.signals import EXIT_PREEMPTED, exit_on_signals
from harness.process.workers import Lost, Workers
from harness.program.by_name import program_of
from harness.program.execute import new_run, run_to_end
from harness.program.messages import exit_code, out_of_memory, user_facing
from harness.program.outcome import Outcome
from harness.run.gpus import own_gpu

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One run to train.

    Attributes:
        program: name of the program.
        options: options as on the command line.
    """

    program: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """A job that has ended, with its outcome.

    Attributes:
        job: the job that ended.
        state: "done", "diverged" or "failed"; `run_jobs` raises the error of a failed job.
        folder: the run's folder.
        seconds: processor time of the run in this call, without imports and the composition of options.
        error: the exception of a job that failed or was stopped by a signal; None of others.
    """

    job: Job
    state: str
    folder: Path = Path()
    seconds: float = 0.0
    error: BaseException | None = None


def compose(program: str, options: Sequence[str]) -> Any:
    """Return the configuration of a program with these options of the command line."""
    program_of(program)  # makes the types of its options known to Hydra
    return groups.compose(program, options)


def run_jobs(jobs: Iterable[Job], workers: int | None = None) -> Iterator[Ended]:
    """Run jobs side by side, each with one thread, and yield each as it ends.

    Ctrl-C, and the end of this process in any way, makes the workers write checkpoints and leave.

    Args:
        jobs: the jobs; the next one is taken when a worker is free.
        workers: number of processes, each of which imports the programs once; None: as many as cores. A single worker
            is this process itself.

    Yields:
        Each job that is done or has diverged; a diverged job does not stop the others.

    Raises:
        ConfigError: a job cannot be run. No further job is started, and it is raised once the running jobs have ended.
        RuntimeError: a job failed in another way; the text has its traceback. Raised as ConfigError is.
        TrainingError: a worker was killed, or a job could not go on (a file cannot be read, the disk is full, memory
            ran out). Raised at the end, after all other jobs have run.
        SystemExit: a job, or this process, was stopped by a signal.
    """
    exit_on_signals()
    workers, waiting_jobs = workers or joblib.cpu_count(), iter(jobs)
    errors_of_jobs, interrupted_jobs = list[BaseException](), list[TrainingError]()

    def until_one_fails() -> Iterator[Job]:
        while not errors_of_jobs:
            try:
                yield next(waiting_jobs)
            except StopIteration:
                return

    for job, ended in do_jobs(until_one_fails(), workers):
        if isinstance(ended, Lost):
            interrupted_jobs.append(TrainingError(f"{' '.join(job.options)}: {ended}"))
            log.error("%s", interrupted_jobs[-1])
        elif isinstance(ended.error, TrainingError):
            interrupted_jobs.append(ended.error)
            log.error("%s", ended.error)
        elif ended.error is not None:
            errors_of_jobs.append(ended.error)
        else:
            yield ended
    if errors_of_jobs or interrupted_jobs:
        raise [*errors_of_jobs, *interrupted_jobs][0]


def do_jobs(jobs: Iterator[Job], workers: int) -> Iterator[tuple[Job, "Ended | Lost"]]:
    """Run jobs and yield each with how it ended; a single worker is this process itself."""
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
                run_to_end(config, program, task, Outcome(""), wait=True)
            except Diverged:
                state = "diverged"
        return ending(state, folder, time.process_time() - began)
    except (SystemExit, KeyboardInterrupt):
        return ending("failed", error=SystemExit(EXIT_PREEMPTED))
    except Exception as error:
        clearer_error = out_of_memory(error) or error
        if exit_code(clearer_error) == EXIT_TRAINING:
            return ending("failed", error=TrainingError(f"{name}: {first_line(clearer_error)}"))
        if user_facing(clearer_error):
            return ending("failed", error=ConfigError(f"{name}: {first_line(clearer_error)}"))
        return ending("failed", error=RuntimeError(f"{name}:\n{traceback.format_exc()}"))
