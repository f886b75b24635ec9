"""Read run folders: config.yaml, identity.json, env.json, metrics.jsonl and, once finished, DONE."""

import errno
import hashlib
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis import boundaries
from analysis.runs import DIVERGED, LARGEST, BadRun, LeftOut, Run

# Any of these makes a folder a run folder.
MARKS = ("config.yaml", "metrics.jsonl", "DONE", "env.json", "identity.json")
YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is 8 times faster


def read(root: Path) -> Iterator[Run | LeftOut]:
    """Yield the runs below `root`, at any depth, in the order of their names."""
    for folder in find(root):
        if isinstance(folder, LeftOut):
            yield folder
            continue
        try:
            yield read_folder(folder)
        except BadRun as reason:
            yield LeftOut(str(folder), str(reason))
        except Exception as error:  # whatever is wrong with one folder, the others are read
            yield LeftOut(str(folder), f"unreadable: {error or type(error).__name__}")


def find(root: Path, seen: set[Path] | None = None) -> Iterator[Path | LeftOut]:
    """Yield the run folders below `root`, or `root` itself if it is one, and what cannot be looked into.

    Folders whose names begin with . or _ are skipped, but a run whose name begins with _ is not: an environment may be
    called so. Links are followed, since runs may have been moved to another disk.

    Args:
        root: the folder.
        seen: real paths of the folders so far; a folder that several links lead to counts once.
    """
    seen = set() if seen is None else seen
    try:
        if (real := root.resolve()) in seen:
            return
        seen.add(real)
        if is_run(root):
            yield root
            return
        below = [child for child in sorted(root.iterdir()) if is_searched(child)]
    except OSError as error:
        yield LeftOut(str(root), f"unreadable: {error.strerror}")
        return
    for child in below:
        if child.is_symlink() and not child.exists():
            yield LeftOut(str(child), "a link that leads nowhere: is a disk not mounted?")
        else:
            yield from find(child, seen)


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return any((folder / mark).exists() for mark in MARKS)


def is_searched(path: Path) -> bool:
    """Return whether runs are looked for in a path below a folder of runs."""
    if path.name.startswith(".") or (path.name.startswith("_") and not is_run(path)):
        return False
    if path.is_symlink():
        return not path.exists() or (path.is_dir() and path.resolve() not in path.parent.resolve().parents)
    return path.is_dir()


def read_folder(folder: Path) -> Run:
    """Read one run folder.

    Raises:
        BadRun: the folder is no run of this project, or is damaged.
    """
    for name in MARKS[:2]:
        if not (folder / name).exists():
            raise BadRun(f"half-written: no {name}")
    finished = (folder / "DONE").exists()
    failed = folder / "FAILED"
    failure = content(failed).decode(errors="replace").strip() if failed.exists() and not finished else ""
    lines = content(folder / "metrics.jsonl")
    if failure and not lines and not failure.startswith(DIVERGED):
        raise BadRun(f"failed: {failure}")
    if finished:
        mapping(folder / "DONE")
        check(folder)
    env_file, identity_file = folder / "env.json", folder / "identity.json"
    identity = mapping(identity_file) if identity_file.exists() else {}  # a run of an older version has none
    meta = {
        "config": mapping(folder / "config.yaml", parse_yaml),
        "environment": mapping(env_file) if env_file.exists() else {},
        "finished": finished,
        "failure": failure,
        "identity": identity.get("run"),
        "execution": identity.get("execution"),
    }
    if not all(isinstance(meta[key], dict | None) for key in ("identity", "execution")):
        raise BadRun(f"corrupt: {identity_file.name} does not say what the run is")
    rows = [] if failure and not lines else parse_lines(lines, finished)  # it may have diverged before its first row
    return Run.of(folder.name, str(folder), meta, table(rows))


def check(folder: Path) -> None:
    """Compare the files of a finished run with its checksums; runs of older versions have none.

    Raises:
        BadRun: a file is not as the run has written it.
    """
    if not (folder / "checksums.json").exists():
        return
    for name, digest in mapping(folder / "checksums.json").items():
        if Path(name).name != name:
            raise BadRun(f"corrupt: checksums.json names {name!r}, which is no file of the folder")
        if hashlib.sha256(content(folder / name)).hexdigest() != digest:
            raise BadRun(f"corrupt: {name} is not what the run has written: the same command trains it again")


def content(file: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, whose reader could wait without end.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return file.read_bytes()


def parse_yaml(raw: bytes) -> Any:
    """Return the options in a config.yaml.

    Raises:
        ValueError: it has aliases, by which a short text could stand for endless values; no run writes them.
        YAMLError: it is damaged.
    """
    if b"&" in raw and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(raw, YamlLoader)):
        raise ValueError("it has aliases, which no run writes")
    return yaml.load(raw, YamlLoader)  # a safe loader


def mapping(file: Path, parse: Callable[[bytes], Any] = json.loads) -> dict[str, Any]:
    """Return a file's content, parsed.

    Raises:
        BadRun: the content is no mapping, or the file cannot be read.
    """
    try:
        parsed = parse(content(file))
    except (AttributeError, LookupError, OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BadRun(f"corrupt: {file.name}: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
    if not isinstance(parsed, dict):
        raise BadRun(f"corrupt: {file.name} is no mapping")
    return parsed


def parse_lines(raw: bytes, finished: bool) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl. That of an unfinished run may end in a partial line, which is dropped.

    Raises:
        BadRun: a line is no JSON, or there is no row.
    """
    lines = raw.split(b"\n")
    if lines[-1] and not finished:
        lines.pop()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError):
            raise BadRun(f"corrupt: metrics.jsonl line {number} is not JSON") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise BadRun("empty: metrics.jsonl has no row, or not one JSON object a line")
    return rows


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a table of numbers, without keys that hold text.

    The row of a boundary has 1 in the column `boundary`. NaN means that a row lacks the key; a logged NaN, of a run
    that diverged, therefore becomes inf, as does a value that is too large to be drawn.
    """
    rows = [boundaries.flag(row) for row in rows]
    columns = {}
    for key in sorted({key for row in rows for key in row}):  # wandb gives them in any order
        try:
            column = np.array([row.get(key) for row in rows], dtype=np.float64)  # None becomes NaN
        except (TypeError, ValueError, OverflowError):
            continue
        for i in np.flatnonzero(np.isnan(column)):
            if rows[i].get(key) is not None:
                column[i] = np.inf
        column[np.abs(column) > LARGEST] = np.inf
        columns[key] = column
    return pd.DataFrame(columns)
