"""Checkpoints that survive a kill at any moment.

A checkpoint is one file, `step-<step>-<sha256>.pt`. It is written under a temporary name, flushed to the disk and
renamed, so a name of that form is always a complete file; the digest in the name detects later damage: a damaged one is
put aside and the one before it is used. A file that cannot be read at the moment is not damaged: that ends the run, and
changes nothing. Files are read with `weights_only=True`: no code in a file is ever run.
"""

import contextlib
import fnmatch
import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from harness.config.errors import TrainingError

log = logging.getLogger(__name__)
FORMAT = 3
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)  # no fault of the file
DIGITS = 32  # of the digest, in the file name
ZIP_READER = "PytorchStreamReader"  # as torch names itself where a file is not one of its own


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Around the loading of a state, whose file is whole, into a learner.

    Raises:
        TrainingError: the state is not one of this learner, as after a change of the code, or a replay has lost rows.
    """
    try:
        yield
    except (*NO_MEMORY, TrainingError, OSError):  # a replay's, which say what to do
        raise
    except Exception as error:
        raise TrainingError(
            f"the checkpoint cannot be loaded ({type(error).__name__}: {_first_line(error)}): remove the folder's "
            "checkpoints/, and the same command trains from the start"
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a file that a run has written, and that is not known to be absent.

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


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace a file atomically: it is the old one or the complete new one, whatever happens.

    Raises:
        OSError: the disk is full or read-only; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)  # of which the new name is flushed
    with contextlib.suppress(OSError):  # some network file systems cannot do this; the rename itself is done
        os.fsync(descriptor)
    os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process left that was killed within `write_atomically`; the folder must be this process's own."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def save(folder: Path, step: int, state: dict[str, Any], config: dict[str, Any], keep: int = 2) -> Path:
    """Write `state` as the newest checkpoint of `folder` and delete all but the newest `keep`.

    Args:
        folder: made if absent.
        step: optimizer steps since the start of the run; orders the checkpoints.
        state: nested dicts, lists and tuples of tensors, numbers and strings.
        config: what the run is; a checkpoint is only ever loaded for an equal config.
        keep: how many checkpoints stay.

    Raises:
        OSError: the disk is full or read-only; earlier checkpoints are as they were.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "config": config, "step": step, "state": state}, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()[:DIGITS]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012d}-{digest}.pt"
    write_atomically(path, buffer.getbuffer())
    remove_old(folder, keep)
    return path


def remove_old(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`."""
    for old in newest_first(folder)[keep:]:
        old.unlink(missing_ok=True)


def load_newest(
    folder: Path,
    config: dict[str, Any],
    device: torch.device | str = "cpu",
    check: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    """The state of the newest readable checkpoint of `folder`, or None if there is none.

    A checkpoint that is damaged, or of another run, is named in a warning and put aside, so that it neither is used nor
    takes the place of a whole one; the one before it is used.

    Args:
        folder: of the checkpoints.
        config: what the run is.
        device: where the state's tensors go.
        check: raises a ValueError for a state that does not fit what else the run has written.

    Raises:
        TrainingError: a file cannot be read at the moment; nothing was put aside.
        RuntimeError: the device cannot hold the state.
    """
    remove_leftovers(folder)
    for path in newest_first(folder):
        try:
            content = read(path, device)
            if content["config"] != config:
                raise ValueError("it is of another run")
            state: dict[str, Any] = content["state"]
            if check is not None:
                check(state)
        except (*NO_MEMORY, OSError, TrainingError):
            raise
        except Exception as error:  # a damaged file can fail in any way
            if isinstance(error, RuntimeError) and ZIP_READER not in str(error):  # of the device, not of the file
                raise
            log.warning("checkpoint %s cannot be used (%s): taking the one before it", path, _first_line(error))
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f"damaged-{path.name}"))
            continue
        return state
    return None


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder, whole or damaged; none if there is no such folder.

    Raises:
        TrainingError: the folder cannot be read at the moment (`Path.glob` would find nothing).
    """
    with reading(folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
    return sorted((folder / name for name in names if fnmatch.fnmatch(name, "step-*.pt")), reverse=True)


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The content of a checkpoint, if the file is whole; `state` is what was saved.

    Raises:
        ValueError: it is damaged or of another version; other errors where its content is not torch's.
        TrainingError: it cannot be read at the moment.
    """
    with reading(path):
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest()[:DIGITS] != path.stem.rsplit("-", 1)[-1]:
        raise ValueError("its content does not match its checksum")
    content: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    if content["format"] != FORMAT:
        raise ValueError(f"of format {content['format']}: another version of this project wrote it")
    return content


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
