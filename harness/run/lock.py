"""A lock that one process holds at a time, and that says whose it is.

Where the file system has `flock`, the system itself releases the lock of a process that ends in any way. Where it has
not (Lustre mounted without it), a second file is the lock. Such a file stays when its process is killed: on the same
machine the next process sees that and takes it over; on another machine nobody can know, so the message names host,
process, time and file, and the user decides.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from harness.training.signals import is_alive, start_of_process

NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
PAUSE = 0.2  # seconds between looks at a lock that is waited for


@dataclass(frozen=True)
class Owner:
    """Who holds a lock, as the lock's file says it.

    Attributes:
        host: name of the machine.
        process: its id there.
        since: local time with its offset.
        machine: what tells a boot of a machine, and its view of processes, from all others; empty where not known.
        started: when the process began, in the system's own count.
    """

    host: str
    process: int
    since: str
    machine: str = ""
    started: str = ""

    @classmethod
    def of(cls, process: int) -> "Owner":
        """A process of this machine, from now on."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return cls(os.uname().nodename, process, now, machine(), start_of_process(process))

    def text(self) -> str:
        """As a file holds it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        """Who `text` names; None if it is the text of an older version."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    @classmethod
    def read(cls, file: Path) -> "Owner | None":
        """Who wrote a lock's file; None if nobody did, or it is of an older version."""
        try:
            return cls.parse(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    @property
    def is_gone(self) -> bool:
        """Whether it is known, as it was a process of this machine, that it has ended."""
        here = self.machine == machine() != "" and self.host == os.uname().nodename
        return here and not is_alive(self.process, self.started)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"


class Held(Exception):
    """Another process holds the lock; the text says which, and what to remove if only the user can know it is gone."""


class Lock:
    """A lock on a path, as a context or by `acquire` and `release`.

    Args:
        path: of its file, in a folder that exists. `<path>-held` is used where the file system has no `flock`.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.mark = path, path.with_name(f"{path.name}-held")
        self._descriptor: int | None = None
        self._marked = False

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            Held: another process has it.
            OSError: the file cannot be written.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            has_flock = self._flock(descriptor)
            if not has_flock or self.mark.exists():
                self._take_mark(keep=not has_flock)
            with contextlib.suppress(OSError):  # on a full disk the lock holds, and only its message says less
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, Owner.of(os.getpid()).text().encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _flock(self, descriptor: int) -> bool:
        """Ask the system for the lock; False where it has no such locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(str(Owner.read(self.path) or "another process")) from None
        except OSError as error:
            if error.errno in NO_FLOCK:
                return False
            raise
        return True

    def _take_mark(self, keep: bool) -> None:
        """Be the one that makes the second file; where `keep` is false it only must not be another process's."""
        while True:
            try:
                descriptor = os.open(self.mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                owner = Owner.read(self.mark)
                if owner is None or not owner.is_gone:
                    who = f"{owner or 'another process'}, by {self.mark}"
                    raise Held(f"{who}; if that process is gone, remove this file") from None
                self._remove_mark_of(owner)
                continue
            self._marked = True
            try:
                os.write(descriptor, Owner.of(os.getpid()).text().encode())
            except OSError:
                self._unmark()
                raise
            finally:
                os.close(descriptor)
            if not keep:
                self._unmark()
            return

    def _remove_mark_of(self, gone: Owner) -> None:
        """Remove the second file of a process that has ended, and no other's that may have come in its place."""
        aside = self.mark.with_name(f".{self.mark.name}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.rename(self.mark, aside)
            if Owner.read(aside) != gone:  # another process was faster, and holds the lock now
                os.link(aside, self.mark)
        aside.unlink(missing_ok=True)

    def _unmark(self) -> None:
        self.mark.unlink(missing_ok=True)
        self._marked = False

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        if self._marked:
            self._unmark()
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        """Wait for the lock."""
        while True:
            try:
                self.acquire()
            except Held:
                time.sleep(PAUSE)
            else:
                return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def machine() -> str:
    """What tells this boot of this machine, and this container's view of processes, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
