"""Read and write the files of a run, so that a kill or a disk that does not answer is never taken for damage."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from harness.config.errors import TrainingError


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context around reading a file that a run has written; a failed read is told apart from a damaged file.

    Raises:
        TrainingError: the system cannot read it (a network disk that does not answer, no permission, too many open
            files), which says nothing about what is in it.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise TrainingError(
            f"cannot read {error.filename or path} ({reason}): nothing was changed; start the same command again when "
            "the file can be read"
        ) from error


def content_of(path: Path) -> bytes | None:
    """Return the bytes of a file that a run has written; None if there is no file of this name.

    Raises:
        OSError: the file cannot be read. This is also raised for a link to a file that is not there, which may lie on a
            disk that is not mounted now, and for a pipe or a device, whose reader would wait without end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return None


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace a file atomically: it is the old one or the complete new one, whatever happens.

    Raises:
        OSError: the disk is full or read-only; the old file is as it was.
    """
    # Two containers that share a disk may each have a process of this number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)  # flushing the folder makes the new name durable
    with contextlib.suppress(OSError):  # some network file systems cannot; the file itself is complete
        os.fsync(descriptor)
    os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a process that was killed within `write_atomically`.

    The caller must hold the folder's lock, or it would remove the files of a process that is still writing.
    """
    with reading(folder):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
