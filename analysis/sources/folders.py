"""Run folders: config.yaml, identity.json, env.json, metrics.jsonl and, once finished, DONE."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import boundaries
from analysis.arrays import Floats
from analysis.runs import LARGEST_VALUE, METRICS, BadRun, LeftOut, Run
from analysis.sources import cache as disk
from analysis.sources.safely import LARGE, parse_json, parse_yaml, printable, read_bytes

NEEDED = ("step", "phase", "epoch", "iteration", "env_steps", *METRICS, "online/accuracy", "online/loss")
MARKS = (
    "config.yaml",
    "metrics.jsonl",
    "DONE",
    "env.json",
    "identity.json",
)  # any of these makes a folder a run folder


def read(root: Path, cache: bool = True) -> Iterator[Run | LeftOut]:
    """The runs below `root`, at any depth, in the order of their names."""
    for folder in find(root):
        if folder == root and not is_run(root):  # nothing in it: the caller reports that
            continue
        try:
            yield read_folder(folder, root / disk.FOLDER if cache else None)
        except BadRun as reason:
            yield LeftOut(printable(str(folder)), printable(str(reason)))
        except Exception as error:  # one bad folder costs one line, whatever is wrong with it
            yield LeftOut(printable(str(folder)), f"unreadable: {printable(str(error)) or type(error).__name__}")


def find(root: Path) -> list[Path]:
    """Run folders, and the topmost folders that hold none. Hidden folders are skipped."""
    if is_run(root):
        return [root]
    found, runs_below = [], False
    for child in sorted(root.iterdir()):
        if child.is_dir() and not child.is_symlink() and child.name[0] not in "._":
            below = find(child)
            runs_below |= any(is_run(folder) for folder in below)
            found += below
    return found if runs_below else [root]


def is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)


def read_folder(folder: Path, cache_folder: Path | None = None) -> Run:
    """One run folder.

    Raises:
        BadRun: it is empty, foreign or corrupt.
    """
    if not any(folder.iterdir()):
        raise BadRun("empty folder")
    if not (folder / "config.yaml").exists() and not (folder / "metrics.jsonl").exists():
        raise BadRun("foreign: neither config.yaml nor metrics.jsonl in it")
    for name in MARKS[:2]:
        if not (folder / name).exists():
            raise BadRun(f"half-written: no {name}")
    key = disk.key([folder / mark for mark in MARKS])
    entry = disk.get(cache_folder, folder, key) if cache_folder else None
    if entry is None:
        entry = parse(folder)
        if cache_folder:
            disk.put(cache_folder, folder, key, entry)
    meta, columns, values = entry
    table = pd.DataFrame(values, columns=columns, copy=False)
    return Run.of(printable(folder.name), printable(str(folder)), meta, table)


def parse(folder: Path) -> disk.Entry:
    """The folder's files as (meta, column names, values of shape (rows, columns))."""
    config = parse_yaml(read_bytes(folder / "config.yaml"), "config.yaml")
    done, about = folder / "DONE", folder / "env.json"
    finished = done.exists()
    if finished:
        parse_json(read_bytes(done), "DONE")
    environment = parse_json(read_bytes(about), "env.json") if about.exists() else {}
    rows = parse_lines(read_bytes(folder / "metrics.jsonl", LARGE), finished)
    columns, values = table(rows)
    meta = {"config": config, "environment": environment, "finished": finished, "identity": read_identity(folder)}
    return meta, columns, values


def read_identity(folder: Path) -> dict[str, Any] | None:
    """What the run is, apart from how it is executed; None for runs from before there was the file.

    Raises:
        BadRun: the file holds something else.
    """
    file = folder / "identity.json"
    if not file.exists():
        return None
    content = parse_json(read_bytes(file), file.name)
    what = content.get("run") if isinstance(content, dict) else None
    if not isinstance(what, dict):
        raise BadRun(f"corrupt: {file.name} does not say what the run is")
    return what


def parse_lines(raw: bytes, finished: bool) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl. A run that is being written may end in a partial line."""
    lines = raw.split(b"\n")
    if lines[-1] and not finished:
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise BadRun("empty: no row in metrics.jsonl")
    try:
        rows: list[dict[str, Any]] = json.loads(
            b"[" + b",".join(lines) + b"]"
        )  # one call is 3 times faster than one a line
    except (ValueError, RecursionError):
        raise BadRun(f"corrupt: metrics.jsonl line {first_bad(lines)} is not JSON") from None
    if len(rows) != len(lines) or not all(isinstance(row, dict) for row in rows):
        raise BadRun("corrupt: metrics.jsonl is not one JSON object a line")
    return rows


def first_bad(lines: list[bytes]) -> int:
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return number
    return len(lines)


def table(rows: list[dict[str, Any]]) -> tuple[list[str], Floats]:
    """Rows as a float64 array (rows, columns); keys that hold text go.

    Raises:
        BadRun: a column that every figure needs holds text.

    A boundary's row gets 1 in the column `boundary`. NaN says that a row lacks the key. A NaN that was logged, of a run
    that diverged, becomes inf to tell it apart, as do values too large to be drawn.
    """
    rows = [boundaries.flag(row) for row in rows]
    keys = sorted({key for row in rows for key in row})  # wandb gives them in any order
    columns = {}
    for key in keys:
        try:
            column = np.array([row.get(key) for row in rows], dtype=np.float64)  # None becomes NaN
        except (TypeError, ValueError, OverflowError):
            if key in NEEDED:
                raise BadRun(f"corrupt: `{key}` is not a number in each row") from None
            continue
        for i in np.flatnonzero(np.isnan(column)):
            if rows[i].get(key) is not None:
                column[i] = np.inf
        column[np.abs(column) > LARGEST_VALUE] = np.inf
        columns[key] = column
    return list(columns), np.column_stack(list(columns.values())) if columns else np.empty((len(rows), 0))
