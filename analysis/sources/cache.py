"""Parsed runs kept on disk, so that a second call does not parse again. Arrays and JSON, never pickle."""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from analysis.arrays import Floats

FOLDER = ".analysis_cache"
Entry = tuple[dict[str, Any], list[str], Floats]  # meta, column names, values (rows, columns)
VERSION = 2  # raise it when the stored content changes


def key(files: Iterable[Path]) -> str:
    """Changes when a file appears, goes, or changes its size or time."""
    stats: list[tuple[str, int | None, int | None]] = []
    for file in files:
        try:
            stat = file.stat()
            stats.append((file.name, stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            stats.append((file.name, None, None))
    return json.dumps([VERSION, stats])


def slot(folder: Path, what: Path | str) -> Path:
    name = os.path.abspath(what) if isinstance(what, Path) else what
    return folder / (hashlib.sha256(name.encode()).hexdigest()[:24] + ".npz")


def get(folder: Path, what: Path | str, key: str) -> Entry | None:
    """What was stored for `what` under the same key; None when there is nothing usable."""
    try:
        with slot(folder, what).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            head = json.loads(stored["head"].item())
            return (head["meta"], head["columns"], stored["values"]) if head["key"] == key else None
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
    ):
        return None  # absent, or cut off by a full disk: parse again


def put(folder: Path, what: Path | str, key: str, entry: Entry) -> None:
    """Stores an entry; if the folder cannot be written, only speed is lost."""
    meta, columns, values = entry
    target = slot(folder, what)
    partial = target.with_name(f"{target.stem}.{os.getpid()}.tmp")
    try:
        head = json.dumps({"key": key, "meta": meta, "columns": columns})
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez(file, head=np.array(head), values=values)
        partial.replace(target)  # complete or absent, also with two readers at once
    except (OSError, TypeError):  # TypeError: a config with dates or the like, which JSON does not know
        partial.unlink(missing_ok=True)
