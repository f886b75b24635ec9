"""Run folders: config.yaml, identity.json, env.json, metrics.jsonl and, once finished, DONE."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis import boundaries
from analysis.arrays import Floats
from analysis.runs import LARGEST_VALUE, METRICS, BadRun, LeftOut, Run

NEEDED = ("step", "phase", "epoch", "iteration", "env_steps", *METRICS, "online/accuracy", "online/loss")
# Any of these makes a folder a run folder.
MARKS = ("config.yaml", "metrics.jsonl", "DONE", "env.json", "identity.json")
YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is 8 times faster


def read(root: Path) -> Iterator[Run | LeftOut]:
    """The runs below `root`, at any depth, in the order of their names."""
    for folder in find(root):
        if folder == root and not is_run(root):  # nothing in it: the caller reports that
            continue
        try:
            yield read_folder(folder)
        except BadRun as reason:
            yield LeftOut(str(folder), str(reason))
        except Exception as error:  # one bad folder costs one line, whatever is wrong with it
            yield LeftOut(str(folder), f"unreadable: {error or type(error).__name__}")


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


def read_folder(folder: Path) -> Run:
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
    finished = (folder / "DONE").exists()
    if finished:
        mapping(folder / "DONE")
    about, what = folder / "env.json", folder / "identity.json"
    meta = {
        "config": mapping(folder / "config.yaml", lambda raw: yaml.load(raw, YamlLoader)),  # a safe loader
        "environment": mapping(about) if about.exists() else {},
        "finished": finished,
        "identity": mapping(what).get("run") if what.exists() else None,  # None: from before there was the file
    }
    if not isinstance(meta["identity"], dict | None):
        raise BadRun(f"corrupt: {what.name} does not say what the run is")
    columns, values = table(parse_lines((folder / "metrics.jsonl").read_bytes(), finished))
    return Run.of(folder.name, str(folder), meta, pd.DataFrame(values, columns=columns, copy=False))


def mapping(file: Path, parse: Callable[[bytes], Any] = json.loads) -> dict[str, Any]:
    """A file's content.

    Raises:
        BadRun: it is no mapping, or cannot be read.
    """
    try:
        content = parse(file.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BadRun(f"corrupt: {file.name}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise BadRun(f"corrupt: {file.name} is no mapping")
    return content


def parse_lines(raw: bytes, finished: bool) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl. A run that is being written may end in a partial line."""
    lines = raw.split(b"\n")
    if lines[-1] and not finished:
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise BadRun("empty: no row in metrics.jsonl")
    try:
        # One call is 3 times faster than one a line.
        rows: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
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
