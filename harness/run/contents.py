"""Digests of the files that a run reads, which are part of the run's identity.

Computing the digest of a large file takes long, so it is cached together with what the system says of the file: size,
inode number, and the times of the last change of content and inode. A user cannot set the time of the inode's last
change, so a file with other content is never taken for the cached one, even if `touch` or `cp --preserve` has put its
older date back.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from harness.config.own_files import LeftOut, files_below
from harness.config.paths import is_path_option
from harness.run.files import reading, write_atomically
from harness.run.own_code import own_source

# A file that changed less than these seconds ago is not cached: its next change may get the same time.
RECENT = 3.0
SMALL = 2**20  # bytes; reading a file up to this size is as fast as looking into the cache
ERRORS_OF_NO_PATH = (
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
)  # the system's errors for a text that is no path at all
NEVER_PATHS = ("name", "_target_")  # options that never name a file, even if one of that name exists


def with_contents(options: Mapping[str, Any], cache_folder: Path | None) -> dict[str, Any]:
    """Return the options, with the digest of each file or folder that an option names.

    It follows the option `<option>` under the name `<option> (content)`. That of `_target_` is the digest of the file
    with the class or function, where this is code of the user's own.

    Args:
        options: the options of a config group, nested.
        cache_folder: folder of cached digests; None: every digest is computed.

    Raises:
        ConfigError: a folder cannot be read, or holds a link that leads nowhere.
        TrainingError: a file cannot be read at the moment.
    """
    completed: dict[str, Any] = {}
    for option, value in options.items():
        completed[option] = with_contents(value, cache_folder) if isinstance(value, Mapping) else value
        digests = []
        for element in value if isinstance(value, list | tuple) else [value]:
            path = own_source(element) if option == "_target_" else _named_path(option, element)
            if path is not None:
                digests.append(digest_of(path, cache_folder))
        if digests:
            completed[f"{option} (content)"] = digests if isinstance(value, list | tuple) else digests[0]
    return completed


def _named_path(option: str, value: Any) -> Path | None:
    """Return the existing file or folder that an option's value names, or None if it names none.

    A plain word such as `relu` names no file, even if a file of that name happens to exist.

    Raises:
        TrainingError: whether there is such a file cannot be told at the moment.
    """
    if not isinstance(value, str) or not value or option in NEVER_PATHS:
        return None
    try:
        path = Path(value).expanduser()
        is_path = any(mark in value for mark in (os.sep, "~")) or is_path_option(option)
        if path.is_file() and (is_path or path.suffix):
            return path
        if path.is_dir() and is_path:
            return path
    except (ValueError, RuntimeError):  # the text has a character that no path has, or names no home folder
        pass
    except OSError as error:
        if error.errno not in ERRORS_OF_NO_PATH:
            with reading(path):
                raise
    return None


def digest_of(path: Path, cache_folder: Path | None = None) -> str:
    """Return the SHA-256 of a file, or of a folder: then of the names and digests of all files below it.

    The digest of a MuJoCo model covers the files that it includes, its meshes and its textures.

    Args:
        path: a file or folder; hidden and system files in a folder do not count.
        cache_folder: folder of cached digests; None: the digest is computed.

    Raises:
        ConfigError: see `with_contents`.
        TrainingError: see `with_contents`.
    """
    model_files = files_of_model(Path(os.path.abspath(path))) if path.suffix == ".xml" and path.is_file() else []
    if model_files:
        digests = [(path.name, _digest_of_file(path, cache_folder))]
        for file in model_files:
            digests.append((os.path.relpath(file, path.parent), _digest_of_file(file, cache_folder)))
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    if path.is_dir():
        files = [
            (str(file.relative_to(path)), _digest_of_file(file, cache_folder)) for file in files_below(path, LeftOut())
        ]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return _digest_of_file(path, cache_folder)


def files_of_model(path: Path) -> list[Path]:
    """Return the files that a MuJoCo model in XML reads, also through those that it includes, sorted, without itself.

    MuJoCo looks for a file in the folder of the model, or of the file that names it, and there in the folders that the
    element `compiler` gives for meshes and textures. A name that is found nowhere is left out: MuJoCo will refuse it.

    Args:
        path: the model; a file that is no XML, or that no model is made of, reads no other.

    Raises:
        TrainingError: a file cannot be read at the moment.
    """
    files, unread = set[Path](), [path]
    asset_folders = {"."}
    names: list[tuple[Path, str]] = []  # folder of a file that names another, and the other's name
    while unread:
        file = unread.pop()
        with reading(file):
            content = file.read_bytes()
        try:
            elements = list(ElementTree.fromstring(content).iter())
        except (ElementTree.ParseError, ValueError, LookupError):
            continue  # MuJoCo will say so
        for element in elements:
            if element.tag == "compiler":
                asset_folders |= {element.get(key, ".") for key in ("assetdir", "meshdir", "texturedir")}
            for attribute, name in element.items():
                if attribute.startswith("file"):  # a texture of a cube has six: fileright, fileleft, ...
                    names.append((file.parent, name))
        # All names anew, since the folders of assets may have been given after them.
        for folder, name in names:
            for base, asset_folder in itertools.product((path.parent, folder), asset_folders):
                named = Path(os.path.normpath(base / asset_folder / name))
                if named not in files and named != path and _is_file(named):
                    files.add(named)
                    if named.suffix == ".xml":
                        unread.append(named)
    return sorted(files)


def _is_file(path: Path) -> bool:
    """Return whether a path is that of an existing file.

    Raises:
        TrainingError: it cannot be told at the moment.
    """
    try:
        return path.is_file()
    except OSError as error:
        if error.errno in ERRORS_OF_NO_PATH:
            return False
        with reading(path):
            raise


def _digest_of_file(path: Path, cache_folder: Path | None) -> str:
    with reading(path):
        if cache_folder is None or path.stat().st_size <= SMALL:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return cached_digest(cache_folder, [path], lambda: sha256_of(path))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, computed anew in pieces, so that a large file needs little memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_digest(cache_folder: Path, files: Sequence[Path], compute: Callable[[], str], *parameters: object) -> str:
    """Return a digest of the contents of files; it is computed once for as long as none of them changes.

    Many processes may ask at once: the cache is one file for each state of the files, written atomically. If it cannot
    be written, the digest is computed each time.

    Args:
        cache_folder: folder of the cache, created if absent.
        files: the files that the digest depends on.
        compute: returns the digest.
        *parameters: what the digest depends on besides the files; must be JSON.
    """
    before = states(files)
    entry = cache_folder / hashlib.sha256(json.dumps([before, parameters]).encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        digest, check = entry.read_text(encoding="ascii").split()
        if check == _check_of(entry, digest):
            return digest
    digest = compute()
    newest = max((max(times) for _, _, _, *times in before), default=0)
    if states(files) == before and time.time_ns() - newest > RECENT * 1e9:
        with contextlib.suppress(OSError):
            cache_folder.mkdir(parents=True, exist_ok=True)
            write_atomically(entry, f"{digest} {_check_of(entry, digest)}".encode())
    return digest


def _check_of(entry: Path, digest: str) -> str:
    """Return the checksum that stands behind a cached digest; a damaged digest would make another run."""
    return hashlib.sha256(f"{entry.name} {digest}".encode()).hexdigest()[:16]


def states(files: Sequence[Path]) -> list[tuple[str, int, int, int, int]]:
    """Return for each file its path, size in bytes, inode number, and times of the last change of content and inode.

    The times are in nanoseconds. If none of these changes, the content has not changed.
    """
    result = []
    for file in files:
        status = file.stat()
        result.append((str(file.absolute()), status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
    return result
