"""Small results kept in the repository: `name.csv` with the rows of many runs, `name.runs.json` with their configs.

They hold what figures and tables need, so that both can be regenerated without the runs; `name.provenance.json` says
what made them.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Ints
from analysis.boundaries import FLAG, join
from analysis.provenance import entry_of
from analysis.runs import METRICS, BadRun, LeftOut, Run
from analysis.streams import ONLINE
from harness.run import provenance

MAIN = [key for key in METRICS if not key.startswith("train/")]
COLUMNS = ("step", "phase", "epoch", "iteration", "env_steps", "seconds", FLAG, *MAIN, "train/return")
PREFIXES = ("boundary/", "firing/", "method/", "eval/")
OF_STREAMS = ("train/accuracy", "train/loss", *ONLINE)
POINTS = 200  # evenly spaced rows of a run that are written
# Options that are not written: where a run is kept and mirrored, and the command line, which may name folders.
PRIVATE = ("paths", "cache", "checkpoint", "tracker", "progress", "hydra", "command")
PATH = re.compile(r"(~|[A-Za-z]:)?[/\\].*")


def read(file: Path) -> Iterator[Run | LeftOut]:
    """Yield the runs in `name.csv`."""
    try:
        descriptions = json.loads(file.with_suffix(".runs.json").read_text(encoding="utf-8"))
        rows = pd.read_csv(file, index_col="run", dtype={"run": str})
    except (OSError, RecursionError, ValueError) as error:
        yield LeftOut(str(file), f"corrupt: {str(error).splitlines()[0]}")
        return
    for name, part in rows.groupby(level=0, sort=False):
        source = f"{file}:{name}"
        try:
            if name not in descriptions["runs"]:
                raise BadRun(f"{file.stem}.runs.json does not name it")
            table = part.reset_index(drop=True).dropna(axis="columns", how="all").astype(float)
            config = merge(descriptions["common"], descriptions["runs"][name])
            meta = {"config": config, "environment": descriptions["environment"]}
            if identities := descriptions.get("identity"):
                meta["identity"] = merge(identities["common"], identities["runs"][name])
            failure = descriptions.get("unfinished", {}).get(name)  # None: the run is finished
            yield Run.of(str(name), source, {**meta, "finished": failure is None, "failure": failure or ""}, table)
        except BadRun as reason:
            yield LeftOut(source, str(reason))
        except Exception as error:  # whatever is wrong with one run, the others are read
            yield LeftOut(source, f"corrupt: {type(error).__name__}: {error}")


def write(runs: Sequence[Run], file: Path) -> list[Path]:
    """Write runs to `name.csv` and `name.runs.json`, and return the written paths.

    Options that all configs share are written once.
    """
    parts = []
    runs = with_own_names(runs)
    for run in runs:
        rows = join(run.history.iloc[kept_rows(run)], run.boundaries)
        columns = COLUMNS + OF_STREAMS if run.is_stream else COLUMNS
        parts.append(rows[[c for c in rows if c in columns or str(c).startswith(PREFIXES)]].assign(run=run.name))
    table = pd.concat(parts, ignore_index=True)
    table = table[["run", *(c for c in table if c != "run")]]
    configs = [public(run.config) for run in runs]
    environments = [public(run.environment) for run in runs]
    common = shared(configs)
    about = {
        "common": common,
        "environment": shared(environments),
        "runs": {run.name: without(config, common) for run, config in zip(runs, configs, strict=True)},
    }
    if unfinished := {run.name: run.failure for run in runs if not run.finished}:
        about["unfinished"] = unfinished
    identities = [public(run.identity) for run in runs if run.identity is not None]
    if len(identities) == len(runs):
        common_identity = shared(identities)
        differing = {}
        for run, identity in zip(runs, identities, strict=True):
            differing[run.name] = without(identity, common_identity)
        about["identity"] = {"common": common_identity, "runs": differing}
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False, float_format="%.9g", lineterminator="\n")
    provenance.write(file, entry_of(runs))
    other = file.with_suffix(".runs.json")
    other.write_text(json.dumps(about, indent=1, default=str) + "\n", encoding="utf-8")
    return [file, other, provenance.file_of(file)]


def with_own_names(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, of which a second one of a name gets another: `name-2`."""
    names: set[str] = set()
    named = []
    for run in runs:
        candidates = itertools.chain([run.name], (f"{run.name}-{number}" for number in itertools.count(2)))
        name = next(candidate for candidate in candidates if candidate not in names)
        names.add(name)
        named.append(replace(run, name=name))
    return named


def public(about: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration or environment without a machine's folders; absolute paths are cut to their last part."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(part) for key, part in value.items()}
        if isinstance(value, list):
            return [cut(part) for part in value]
        if isinstance(value, str) and PATH.fullmatch(value):
            return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
        return value

    return {key: cut(value) for key, value in about.items() if key not in PRIVATE}


def kept_rows(run: Run) -> Ints:
    """Return the indices of the rows to write: evenly spaced ones, and all that tables need.

    Tables need the best and the last row, those before and after each boundary, and those of the last quarter if it has
    training returns. Of a stream, the last row of each task is enough.
    """
    history, last = run.history, len(run.history) - 1
    if run.is_stream:
        ends = history[run.x].notna()  # the last row of each task
        return np.flatnonzero(ends | (history.index == history.index[-1]))
    keep = {0, last, *np.linspace(0, last, min(POINTS, last + 1)).astype(int)}
    for values in (history[run.metric], run.after_the_act[run.metric]):
        if values.notna().any():
            keep |= set(np.flatnonzero(history.index.isin([values.idxmax(), values.idxmin()])).tolist())
    keep.add(int(np.flatnonzero(history[run.metric].notna())[-1]))
    if "train/return" in history:
        keep |= set(np.flatnonzero(history.index.isin(run.last_quarter.index)).tolist())
    if "phase" in history:
        first = np.flatnonzero(np.diff(history["phase"])) + 1
        keep |= {*first.tolist(), *(first - 1).tolist()}
    for column in history:
        if str(column).startswith("method/"):
            keep |= set(np.flatnonzero(history[column].notna()).tolist())
    return np.array(sorted(keep))


def shared(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the entries that nested dicts have in common."""
    first, rest = dicts[0], dicts[1:]
    out = {}
    for key, value in first.items():
        if all(key in other and other[key] == value for other in rest):
            out[key] = value
        elif isinstance(value, dict) and all(isinstance(other.get(key), dict) for other in rest):
            out[key] = shared([value, *(other[key] for other in rest)])
    return out


def without(config: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Return a nested dict without the entries that it shares with `common`."""
    out = {}
    for key, value in config.items():
        if key not in common:
            out[key] = value
        elif value != common[key]:
            out[key] = without(value, common[key])
    return out


def merge(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Undo `without`: return the entries of both nested dicts."""
    both = {k: merge(common[k], v) if isinstance(v, dict) and k in common else v for k, v in own.items()}
    return common | both
