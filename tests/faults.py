"""Faults that a child of the zygote is born with, and disks that are small or read-only."""

import functools
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.run.folder import Run
from harness.training import estimate


def little_memory() -> None:
    """The system gives this process 200 MB more than it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + 200_000_000,) * 2)


def say_how_long_soon() -> None:
    """A run says how long it takes after a hundredth of a second, not ten seconds."""
    estimate.FIRST_AFTER_SECONDS = 0.01


def traces_only() -> None:
    """`torch.compile` traces and guards as ever, but runs the traced operations one by one: no minutes of C++."""
    torch.compile = functools.partial(torch.compile, backend="eager")


def forks_workers() -> None:
    """A group of processes of its own, in which the workers of jobs are forks, which have imported everything."""
    os.setsid()
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda kind: real("fork")  # type: ignore[assignment]


def holds() -> None:
    """The process stops itself (SIGSTOP) after each of the rows that it logs whose numbers `HOLD_AT` names."""
    log, rows = Run.log, itertools.count(1)
    at = [int(number) for number in os.environ.get("HOLD_AT", "2").split(",")]

    def held(run: Run, row: dict[str, Any]) -> None:
        log(run, row)
        if next(rows) in at:
            os.kill(os.getpid(), signal.SIGSTOP)

    Run.log = held  # type: ignore[method-assign,assignment]


def log_is_full() -> None:
    """Nothing that the process prints finds room."""
    for descriptor in (1, 2):
        os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)


@contextmanager
def small_disk(folder: Path, megabytes: float) -> Iterator[Path]:
    """A file system of its own of that size at `folder`; skips the test where the process may not mount."""
    folder.mkdir()
    options = f"size={int(megabytes * 1024)}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("this process may not mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(disk: Path) -> None:
    """Remount a `small_disk`."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all room that is left; removing it makes room again."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return filler
