"""Many runs as jobs in processes of this machine: the driver of searches and studies.

A job trains one run to its end, as `execute` does: a finished run is skipped and an unfinished one is resumed. So the
same jobs, started again, go on where they stopped.
"""

import functools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import Any

import joblib

from harness.config import groups
from harness.config.cli import Outcome, out_of_memory, user_facing
from harness.config.errors import ConfigError, TrainingError, one_line
from harness.run.execute import new_run, run_to_end
from harness.run.gpus import own_gpu
from harness.run.programs import program_of
from harness.training.console import show_log
from harness.training.signals import EXIT_PREEMPTED, exit_on_signals


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
        ConfigError: a job cannot be run. It is raised when the jobs that were running have ended.
        RuntimeError: a job failed in another way, with its traceback; also when the others have ended.
        SystemExit: a job was stopped by a signal.
    """
    workers = workers or joblib.cpu_count()
    waiting, failed = iter(jobs), list[BaseException]()
    for ended in map(run_job, waiting) if workers == 1 else run_in_pool(waiting, workers, failed):
        if ended.error is None:
            yield ended
            continue
        failed.append(ended.error)
        if workers == 1:
            break
    if failed:
        raise failed[0]


def run_in_pool(jobs: Iterator[Job], workers: int, failed: Sequence[BaseException]) -> Iterator[Ended]:
    """Run jobs in processes of their own; none is begun once there is a failed one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when a worker imports torch
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, prepare_worker) as pool:
        running = {pool.submit(run_job, job) for job in islice(jobs, workers)}
        try:
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield result_of(future)
                    running |= {pool.submit(run_job, job) for job in islice(jobs, int(not failed))}
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()  # they write checkpoints first
            raise


def result_of(future: "Future[Ended]") -> Ended:
    """How a worker's job ended.

    Raises:
        TrainingError: a worker is gone.
    """
    try:
        return future.result()
    except BrokenProcessPool:
        raise TrainingError("a worker was killed (out of memory?): the same command, started again, goes on") from None


def prepare_worker() -> None:
    """Let a worker end with its parent, and leave Ctrl-C to the parent while the worker does not train."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_on_signals()
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait for the parent's end, then ask this process to write a checkpoint, and to leave when it waits for a job."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


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
