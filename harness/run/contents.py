"""What is in the files that a run reads: part of what it is, unless a published digest says that they are their name's.

A file's digest is remembered together with what the system says of the file: size, times of change, number of inode.
The time of the last change of its inode cannot be set by a user, so a file of other content is never taken for the
remembered one, also not where `touch` or `cp --preserve` has put its older date back.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config.own_files import LeftOut, files_below
from harness.run.checkpoint import reading, write_atomically

RECENT = 3.0  # seconds; of a file that changed so short a time ago the next change may show no other time
SMALL = 2**20  # bytes up to which reading a file is as quick as asking what is remembered of it
PATH_WORDS = ("path", "file", "folder", "dir", "root", "weights", "checkpoint")  # in the name of an option
NAMES = ("name", "_target_")  # options that name no file, whatever lies beside


def with_contents(options: Mapping[str, Any], memory: Path | None) -> dict[str, Any]:
    """Options, and beside each that names a file or folder that is there, the digest of what is in it.

    Args:
        options: of a config group, nested.
        memory: folder where digests are remembered; None: they are computed.

    Raises:
        ConfigError: a folder of the user's cannot be read, or holds a link that leads nowhere.
        TrainingError: a file cannot be read at the moment.
    """
    known: dict[str, Any] = {}
    for option, value in options.items():
        known[option] = with_contents(value, memory) if isinstance(value, Mapping) else value
        values = value if isinstance(value, list | tuple) else [value]
        digests = [digest_of(path, memory) for path in map(_path_of(option), values) if path is not None]
        if digests:
            known[f"{option} (content)"] = digests if isinstance(value, list | tuple) else digests[0]
    return known


def _path_of(option: str) -> Callable[[Any], Path | None]:
    """Of an option: the file or folder that a value of it names, if it names one."""

    def path_of(value: Any) -> Path | None:
        if not isinstance(value, str) or not value or option in NAMES:
            return None
        try:
            path = Path(value).expanduser()
            is_named = any(mark in value for mark in (os.sep, "~")) or any(word in option for word in PATH_WORDS)
            if is_named or path.suffix:  # not a word, such as relu, for which a file lies beside by chance
                return path if path.is_file() or (is_named and path.is_dir()) else None
        except (OSError, ValueError, RuntimeError):  # too long for a name, say
            pass
        return None

    return path_of


def digest_of(path: Path, memory: Path | None = None) -> str:
    """SHA-256 of a file; of a folder, that of the names below it and of the contents of these files.

    Args:
        path: hidden and system files of a folder do not count.
        memory: as of `with_contents`.

    Raises:
        ConfigError: see `with_contents`.
        TrainingError: see `with_contents`.
    """
    if path.is_dir():
        files = [(str(file.relative_to(path)), _of_file(file, memory)) for file in files_below(path, LeftOut())]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return _of_file(path, memory)


def _of_file(path: Path, memory: Path | None) -> str:
    with reading(path):
        if memory is None or path.stat().st_size <= SMALL:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return remembered(memory, [path], lambda: sha256_of(path))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, read now."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered(memory: Path, files: Sequence[Path], compute: Callable[[], str], *what: object) -> str:
    """A digest of what is in these files, computed once for as long as none of them changes.

    Many processes may ask at once: what is remembered is a file for each state of the files, written whole or not at
    all. Where it cannot be written, the digest is computed each time.

    Args:
        memory: folder, made if absent.
        files: on which the digest depends.
        compute: gives the digest.
        *what: on which it depends too.
    """
    before = states(files)
    place = memory / hashlib.sha256(json.dumps([before, what]).encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        if len(digest := place.read_text(encoding="ascii")) == hashlib.sha256().digest_size * 2:
            return digest
    digest = compute()
    newest = max((max(times) for _, _, _, *times in before), default=0)
    if states(files) == before and time.time_ns() - newest > RECENT * 1e9:
        with contextlib.suppress(OSError):
            memory.mkdir(parents=True, exist_ok=True)
            write_atomically(place, digest.encode())
    return digest


def states(files: Sequence[Path]) -> list[tuple[str, int, int, int, int]]:
    """What the system says of files: path, size, number of the inode, and the times of the last changes of content and
    inode, in nanoseconds."""
    return [
        (str(file.absolute()), (about := file.stat()).st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
        for file in files
    ]
