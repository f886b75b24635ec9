"""Runs of the wandb service, `wandb:entity/project`, through `wandb.Api` alone, as its wire format may change."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from analysis.boundaries import place
from analysis.runs import BadRun, LeftOut, Run, SourceError
from analysis.sources import cache as disk
from analysis.sources.folders import table

T = TypeVar("T")
PAUSES = (1.0, 4.0)  # seconds before the second and the third attempt; wandb itself retries too
PAGE = 10_000  # history steps (not rows) a request


def read(path: str, cache: bool = True, page: int = 50) -> Iterator[Run | LeftOut]:
    """The runs of `entity/project`.

    Raises:
        SourceError: no such project, no key, or no answer after three attempts.
    """
    if path.count("/") != 1 or not all(path.split("/")):
        raise SourceError(f"wandb:{path}: write wandb:entity/project")
    import wandb

    try:
        api = wandb.Api(timeout=30)
        found = patiently(lambda: list(api.runs(path, per_page=page)))
    except ValueError as error:
        raise SourceError(f"wandb:{path}: {error}") from None
    except wandb.errors.Error as error:
        raise SourceError(f"wandb:{path}: {str(error).splitlines()[0]}") from None
    for remote in found:
        source = f"wandb:{path}/{remote.id}"
        try:
            yield read_run(remote, source, cache_folder() if cache else None)
        except BadRun as reason:
            yield LeftOut(source, str(reason))
        except wandb.errors.Error as error:
            yield LeftOut(source, f"unreadable: {str(error).splitlines()[0]}")


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fire-plasticity"


def read_run(remote: Any, source: str, cache_folder: Path | None = None) -> Run:
    """One run of the service; its history comes from the cache if it has not changed since.

    Raises:
        BadRun: it is no run of this project.
    """
    server = os.environ.get("WANDB_BASE_URL", "")
    key = json.dumps([disk.VERSION, remote.state, remote.heartbeat_at, remote.history_line_count])
    entry = disk.get(cache_folder, server + source, key) if cache_folder else None
    if entry is None:
        entry = patiently(lambda: download(remote))
        if cache_folder:
            disk.put(cache_folder, server + source, key, entry)
    meta, columns, values = entry
    return Run.of(meta["name"], source, meta, pd.DataFrame(values, columns=columns, copy=False))


def download(remote: Any) -> disk.Entry:
    """A run's whole history, page by page, as (meta, column names, values)."""
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    for row in remote.scan_history(page_size=PAGE):
        row.setdefault("step", row.get("_step"))
        rows[place(row)] = row
    if not rows:
        raise BadRun("empty: no history")
    config = {key: value for key, value in dict(remote.config).items() if not key.startswith("_")}
    done = any(key.startswith("final/") for key in dict(remote.summary))
    environment = getattr(remote, "metadata", None) or {}
    known = {key: environment[key] for key in ("os", "python", "git", "gpu", "cpu_count") if key in environment}
    finished = remote.state == "finished" and done
    columns, values = table([rows[at] for at in sorted(rows)])
    return {"name": remote.name, "config": config, "environment": known, "finished": finished}, columns, values


def patiently(call: Callable[[], T]) -> T:
    """What `call` returns, asked again after a pause if the service does not answer."""
    import wandb

    for pause in PAUSES:
        try:
            return call()
        except (wandb.errors.CommError, OSError):
            time.sleep(pause)
    return call()
