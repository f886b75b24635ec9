"""Faults that a child of the zygote is born with, and disks that are small or read-only."""

import ctypes
import errno
import functools
import itertools
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.run.folder import Run

HAS_SECCOMP = sys.platform == "linux" and platform.machine() == "x86_64"


def no_locks() -> None:
    """The kernel answers every request for a lock with ENOLCK, as an NFS mount without lock daemon does (seccomp)."""
    fcntl_call, flock_call = 72, 73  # x86-64
    load, jump_if, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.ENOLCK
    program = [
        (load, 0, 0, 0),  # the system call's number
        (jump_if, 5, 0, flock_call),
        (jump_if, 0, 3, fcntl_call),
        (load, 0, 0, 24),  # its second argument
        (jump_if, 2, 0, 6),  # F_SETLK
        (jump_if, 1, 0, 7),  # F_SETLKW
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, filter_, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP, a filter


def little_memory() -> None:
    """The system gives this process 200 MB more than it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + 200_000_000,) * 2)


def jumping_clock() -> None:
    """The wall clock jumps by decades, forth and back, each time that it is looked at."""
    jumps = itertools.cycle((0.0, 1e9, -1e9, 3e8))
    real = time.time
    time.time = lambda: real() + next(jumps)
    time.time_ns = lambda: int(time.time() * 1e9)


def traces_only() -> None:
    """`torch.compile` traces and guards as ever, but runs the traced operations one by one: no minutes of C++."""
    torch.compile = functools.partial(torch.compile, backend="eager")  # type: ignore[assignment]


def holds() -> None:
    """The process stops itself (SIGSTOP) after each of the rows that it logs whose numbers `HOLD_AT` names."""
    log, rows = Run.log, itertools.count(1)
    at = [int(number) for number in os.environ.get("HOLD_AT", "2").split(",")]

    def held(run: Run, row: dict[str, Any]) -> None:
        log(run, row)
        if next(rows) in at:
            os.kill(os.getpid(), signal.SIGSTOP)

    Run.log = held  # type: ignore[method-assign]


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


def make_read_only(disk: Path, yes: bool = True) -> None:
    """Remount a `small_disk`."""
    subprocess.run(["mount", "-o", f"remount,{'ro' if yes else 'rw'}", str(disk)], check=True)


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
