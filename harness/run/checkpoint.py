"""Checkpoints that survive a kill at any moment.

A checkpoint is one file, `step-<step>-<sha256>.pt`. It is written under a temporary name, flushed to the disk and
renamed, so a file of that name is always complete. The digest in the name detects later damage: a damaged checkpoint is
put aside, and the one before it is used. A file that cannot be read at the moment is not damaged: this ends the run and
changes nothing. Files are read with `weights_only=True`, so no code in a file is ever run.
"""

import contextlib
import errno
import fnmatch
import hashlib
import io
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.config.errors import TrainingError, first_line
from harness.run.files import content_of, reading, remove_leftovers, write_atomically

log = logging.getLogger(__name__)
FORMAT = 3
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)  # these say nothing about the file
DIGEST_DIGITS = 32  # hexadecimal digits of the SHA-256 in the file name
PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor, nn.Parameter)  # types of values that can be read
TORCH_READER = "PytorchStreamReader"  # named in torch's error where the file is the cause and not the device


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Context around loading a state into a learner; errors become a TrainingError that says what to do.

    The state's file is known to be complete.

    Raises:
        TrainingError: the state does not fit this learner, as after a change of the code, or a replay has lost rows.
    """
    try:
        yield
    except (*OUT_OF_MEMORY, TrainingError, OSError):  # the replay's own errors already say what to do
        raise
    except Exception as error:
        raise TrainingError(
            f"the checkpoint cannot be loaded ({type(error).__name__}: {first_line(error)[:200]}): remove the folder's "
            "checkpoints/, and the same command trains from the start"
        ) from error


def save(folder: Path, step: int, state: dict[str, Any], identity: dict[str, Any], keep: int = 2) -> Path:
    """Write `state` as the newest checkpoint of `folder` and delete all but the newest `keep`.

    Args:
        folder: the checkpoints' folder, created if absent.
        step: optimizer steps since the start of the run; orders the checkpoints.
        state: nested dicts, lists and tuples of tensors, numbers and strings.
        identity: of the run; a checkpoint is only loaded for an equal one.
        keep: how many checkpoints stay.

    Raises:
        OSError: the disk is full or read-only; earlier checkpoints are as they were.
        TrainingError: the state has a value that could not be read again; likewise.
    """
    check_readable(state)
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "config": identity, "step": step, "state": state}, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()[:DIGEST_DIGITS]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012d}-{digest}.pt"
    write_atomically(path, buffer.getbuffer())
    with contextlib.suppress(OSError, TrainingError):  # the checkpoint is written; the next save removes what stays
        remove_old(folder, keep)
    return path


def check_readable(value: Any, *names: Any) -> None:
    """Raise a TrainingError if torch could not read a value back without executing code, as it reads checkpoints.

    Args:
        value: nested dicts, lists, tuples and sets of what is to be written.
        names: where the value stands in the state, for the message.
    """
    if type(value) in (dict, OrderedDict):
        for key, element in value.items():
            check_readable(key, *names)
            check_readable(element, *names, key)
    elif type(value) in (list, tuple, set):
        for element in value:
            check_readable(element, *names)
    elif type(value) not in PLAIN or getattr(value, "__dict__", None):  # a tensor may have attributes
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            torch.load(io.BytesIO(buffer.getbuffer()), map_location="cpu", weights_only=True)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # pickle's errors are of many types
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise TrainingError(
                f"a checkpoint cannot hold {'.'.join(map(str, names))}, which is a {kind}: keep tensors, numbers and "
                "texts of Python, and lists, tuples, sets and dicts of these"
            ) from error


def remove_old(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`."""
    for old in newest_first(folder)[keep:]:
        old.unlink(missing_ok=True)


def load_newest(
    folder: Path,
    identity: dict[str, Any],
    device: torch.device | str = "cpu",
    check: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    """Return the state of the newest usable checkpoint of `folder`, or None if there is none.

    A checkpoint that is damaged, or of another run, is named in a warning and renamed to `damaged-...`, so that it does
    not count among the newest that are kept. The one before it is used.

    Args:
        folder: the checkpoints' folder.
        identity: of the run.
        device: the device of the state's tensors.
        check: raises a ValueError for a state that does not fit the run's other files.

    Raises:
        TrainingError: a file cannot be read at the moment; nothing was put aside.
        RuntimeError: the device cannot hold the state.
    """
    remove_leftovers(folder)
    for path in newest_first(folder):
        try:
            content = read(path, device)
            if content["config"] != identity:
                raise ValueError("it is of another run")
            state: dict[str, Any] = content["state"]
            if check is not None:
                check(state)
        except (*OUT_OF_MEMORY, OSError, TrainingError):
            raise
        except Exception as error:  # a damaged file can fail in any way
            if isinstance(error, RuntimeError) and TORCH_READER not in str(error):  # the device's fault, not the file's
                raise
            log.warning("checkpoint %s cannot be used (%s): taking the one before it", path, first_line(error)[:200])
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f"damaged-{path.name}"))
            continue
        return state
    return None


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, damaged ones too; an empty list if there is no such folder.

    Raises:
        TrainingError: the folder cannot be read at the moment (`Path.glob` would find nothing).
    """
    with reading(folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            if folder.is_symlink():  # to a disk that is not mounted now, for example
                raise
            return []
    return sorted((folder / name for name in names if fnmatch.fnmatch(name, "step-*.pt")), reverse=True)


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the content of a checkpoint: `format`, `config`, `step`, and in `state` what was saved.

    Raises:
        ValueError: it is damaged or of another version; other errors where its content is not torch's.
        TrainingError: it cannot be read at the moment.
    """
    with reading(path):
        if (data := content_of(path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS] != path.stem.rsplit("-", 1)[-1]:
        raise ValueError("its content does not match its checksum")
    content: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    if content["format"] != FORMAT:
        raise ValueError(f"of format {content['format']}: another version of this project wrote it")
    return content
