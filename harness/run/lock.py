"""A lock that one process holds at a time, and whose file names its owner.

If the file system has `flock`, the system releases the lock when its process ends, however it ends. If it has not
(Lustre mounted without it), the existence of a second file is the lock. That file stays when its process is killed. The
next process on the same machine sees that the owner has ended and takes the lock over. From another machine this cannot
be seen, so the message names host, process, time and file, and the user decides.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from harness.process.signals import is_alive, start_of_process

NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
SWEEP_LOG = "FIRE_SWEEP_LOG"  # variable of the environment: a folder of the sweep that this process runs jobs of
PAUSE = 0.2  # seconds between two attempts to take a lock
LONG_WAIT = 2.0  # seconds after which a wait is logged

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock, as the lock's file names it.

    Attributes:
        host: name of the machine.
        process: id of the process on that machine.
        since: local time at which it took the lock, with its offset from UTC.
        machine: what `machine()` returned there; empty if not known.
        started: when the process began (`start_of_process`).
        sweep: the sweep that it runs jobs of, as `SWEEP_LOG` names it; empty if it runs none.
    """

    host: str
    process: int
    since: str
    machine: str = ""
    started: str = ""
    sweep: str = ""

    @classmethod
    def of(cls, process: int) -> "Owner":
        """Describe a process of this machine that takes a lock now."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        sweep = os.environ.get(SWEEP_LOG, "")
        return cls(os.uname().nodename, process, now, machine(), start_of_process(process), sweep)

    def text(self) -> str:
        """Return the content of the lock's file."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        """Read the content of a lock's file; None if an older version wrote it, or it is damaged."""
        try:
            owner = cls(**json.loads(text))
        except (RecursionError, TypeError, ValueError):
            return None
        return owner if isinstance(owner.process, int) and 0 < owner.process < 2**31 else None

    @classmethod
    def read(cls, file: Path) -> "Owner | None":
        """Return who wrote a lock's file; None if there is no file, or an older version wrote it."""
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                return None
            return cls.parse(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    @property
    def is_gone(self) -> bool:
        """Whether this is a process of this machine that has ended; False if that cannot be known."""
        is_here = self.is_on_this_machine and self.host == os.uname().nodename
        return is_here and not is_alive(self.process, self.started)

    @property
    def is_on_this_machine(self) -> bool:
        """Whether this is a process of this machine; False if the system does not tell machines apart."""
        here = machine()
        return bool(here) and self.machine == here

    @property
    def is_in_this_sweep(self) -> bool:
        """Whether this is a process of this machine that runs jobs of the same sweep as the present one."""
        return self.sweep == os.environ.get(SWEEP_LOG) and self.is_on_this_machine

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"


class Held(Exception):
    """Another process holds the lock.

    The text names it, and the file to remove if only the user can know that the process has ended.

    Attributes:
        owner: the process; None if it has not named itself (yet).
    """

    def __init__(self, text: str, owner: Owner | None) -> None:
        super().__init__(text)
        self.owner = owner


class Lock:
    """A lock on a path, as a context or by `acquire` and `release`.

    Args:
        path: the lock's file, in an existing folder. `<path>-held` is used where the file system has no `flock`.
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
        # A link is refused, so that no file elsewhere is emptied.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            has_flock = self._flock(descriptor)
            if not has_flock or self.mark.exists():
                self._take_mark(keep=not has_flock)
            with contextlib.suppress(OSError):  # on a full disk the lock works, but does not name its owner
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
            owner = Owner.read(self.path)
            raise Held(str(owner or "another process"), owner) from None
        except OSError as error:
            if error.errno in NO_FLOCK:
                return False
            raise
        return True

    def _take_mark(self, keep: bool) -> None:
        """Create the second file, which exactly one process can do.

        Args:
            keep: False where `flock` is the lock: the second file, which a process without `flock` may hold, is then
                removed at once.

        Raises:
            Held: another process has created it.
        """
        while True:
            try:
                descriptor = os.open(self.mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                owner = Owner.read(self.mark)
                if owner is None or not owner.is_gone:
                    who = f"{owner or 'another process'}, by {self.mark}"
                    raise Held(f"{who}; if that process is gone, remove this file", owner) from None
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
        """Remove the second file of a process that has ended, but not one that another process created meanwhile."""
        aside = self.mark.with_name(f".{self.mark.name}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.rename(self.mark, aside)
            if Owner.read(aside) != gone:  # another process was faster and holds the lock: give its file back
                os.link(aside, self.mark)
        aside.unlink(missing_ok=True)

    def _unmark(self) -> None:
        self.mark.unlink(missing_ok=True)
        self._marked = False

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        if self._marked:
            self._unmark()
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        """Wait for the lock, and log who holds it if that takes longer than a moment."""
        began, is_logged = time.monotonic(), False
        while True:
            try:
                self.acquire()
            except Held as holder:
                if not is_logged and time.monotonic() - began > LONG_WAIT:
                    log.warning("waiting for %s, which is held by %s", self.path, holder)
                    is_logged = True
                time.sleep(PAUSE)
            else:
                return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def machine() -> str:
    """Return text that identifies this boot of this machine and this container's namespace of process ids.

    Two processes with the same text see each other's ids. Empty if the system does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
