"""A folder's lock, released by the system when its holder ends, in any way.

A POSIX record lock: unlike `flock` it is not inherited by forked children (loader workers may outlive a killed parent),
and it works over NFS. Some file systems have no locks at all; there `acquire` raises, and the caller decides.
"""

import contextlib
import errno
import fcntl
import os
import platform
import time
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class NoLocks(Exception):
    """The file system of the folder has no locks."""


class FolderLock:
    """Keeps other processes out of `folder` (which exists) from `acquire` until `release` or the process's end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free. A folder that is removed at this moment is made anew.

        Returns:
            Whether it was taken.

        Raises:
            NoLocks: the file system has none.
            OSError: the folder cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise NoLocks(os.strerror(error.errno or 0)) if error.errno in NO_LOCKS else error from None
        self._file = file
        if self.lost:  # removed between opening and locking
            self.release()
            return False
        me = f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        with contextlib.suppress(OSError):  # on a full disk only the name is missing
            os.ftruncate(file, 0)
            os.pwrite(file, me.encode(), 0)
        return True

    @property
    def lost(self) -> bool:
        """Whether the folder, and with it the lock, was removed since the lock was taken."""
        return self._file is not None and os.fstat(self._file).st_nlink == 0

    def release(self) -> None:
        """Release the lock; nothing if it was not taken."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def holder(self) -> str:
        """Who holds the lock, or held it last."""
        try:
            return (self.folder / ".lock").read_text().strip() or "another process"
        except OSError:
            return "another process"


def is_held(folder: Path) -> bool:
    """Whether another process holds the folder's lock now (False where that cannot be known)."""
    try:
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(file)
    return False
