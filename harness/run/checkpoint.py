"""Checkpoints that survive a kill at any moment.

A checkpoint is one file, `step-<step>-<sha256>.pt`. It is written under a temporary name, flushed to the disk and
renamed, so a name of that form is always a complete file; the digest in the name detects later damage. Files
are read with `weights_only=True`: no code in a file is ever run. It states its schema (see `schema`), which is checked
when it is read, whoever has changed it and renamed it: a damaged one is put aside and the one before it is used.
"""

import contextlib
import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from harness.run.identity import differing_keys
from harness.run.schema import check_outline, outline

log = logging.getLogger(__name__)
FORMAT = 2
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)  # no fault of the file
DIGITS = 32  # of the digest, in the file name


class DamagedStateError(RuntimeError):
    """A state that was read as whole cannot be loaded."""


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Around the loading of a state into a learner: what fails there is the state's fault.

    Raises:
        DamagedStateError: with what failed.
    """
    try:
        yield
    except NO_MEMORY:
        raise
    except Exception as error:
        raise DamagedStateError(_first_line(error)) from error


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
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process left that was killed within `write_atomically`; the folder must be this process's own."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries (new and renamed files) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems cannot do this; the rename itself is done
        log.debug("cannot fsync %s: %s", folder, error)
    finally:
        os.close(descriptor)


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
    content = {"format": FORMAT, "config": config, "step": step, "schema": outline(state), "state": state}
    torch.save(content, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()[:DIGITS]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012d}-{digest}.pt"
    write_atomically(path, buffer.getbuffer())
    for old in newest_first(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


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
        check: raises an exception for a state that cannot be one of this run.
    """
    remove_leftovers(folder)
    for path in newest_first(folder):
        try:
            content = _read(path, device)
            if difference := differing_keys(content["config"], config):
                raise ValueError(f"of another run; it differs in {', '.join(difference)}")
            state: dict[str, Any] = content["state"]
            if check is not None:
                check(state)
        except NO_MEMORY:
            raise
        except Exception as error:  # a crafted file can fail in any way
            put_aside(path, _first_line(error))
            continue
        return state
    return None


def put_aside(path: Path, why: str) -> None:
    """Give a checkpoint that cannot be used another name, and say so."""
    log.warning("checkpoint %s is damaged (%s): using the one before it", path, why)
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"damaged-{path.name}"))


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder, whole or damaged."""
    return sorted(folder.glob("step-*.pt"), reverse=True)


def _read(path: Path, device: torch.device | str) -> dict[str, Any]:
    if not path.is_file():  # a pipe would wait for ever
        raise ValueError("it is no file")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest()[:DIGITS] != path.stem.rsplit("-", 1)[-1]:
        raise ValueError("its content does not match its checksum")
    content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"not a checkpoint of format {FORMAT}")
    if f"{content['step']:012d}" != path.stem.split("-")[1]:
        raise ValueError(f"its name is not that of step {content['step']}")
    check_outline("its content is not as it states", outline(content["state"]), content["schema"])
    return content


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
