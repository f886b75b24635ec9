"""Runs of the wandb service, `wandb:entity/project`, through `wandb.Api` alone, as its wire format may change."""

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pandas as pd

from analysis.boundaries import place
from analysis.runs import BadRun, LeftOut, Run, SourceError
from analysis.sources.folders import table

T = TypeVar("T")
PAUSES = (1.0, 4.0)  # seconds before the second and the third attempt; wandb itself retries too
PAGE = 10_000  # history steps (not rows) a request


def read(path: str, page: int = 50) -> Iterator[Run | LeftOut]:
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
            yield patiently(lambda: read_run(remote, source))  # noqa: B023
        except BadRun as reason:
            yield LeftOut(source, str(reason))
        except wandb.errors.Error as error:
            yield LeftOut(source, f"unreadable: {str(error).splitlines()[0]}")


def read_run(remote: Any, source: str) -> Run:
    """One run of the service, its history page by page.

    Raises:
        BadRun: it is no run of this project.
    """
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
    meta = {"config": config, "environment": known, "finished": finished}
    return Run.of(remote.name, source, meta, pd.DataFrame(values, columns=columns, copy=False))


def patiently(call: Callable[[], T]) -> T:
    """What `call` returns, asked again after a pause if the service does not answer."""
    import wandb

    for pause in PAUSES:
        try:
            return call()
        except (wandb.errors.CommError, OSError):
            time.sleep(pause)
    return call()
