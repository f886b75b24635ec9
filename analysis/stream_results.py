"""Many methods on a stream of tasks as one small table: a row for each task of each run.

What pages need is kept: `value` at the end of the task (accuracy, or loss of a regression), `online`, its average over
all epochs so far, and `kept`, the accuracy on the task before, right after the boundary. Where phases are no tasks
(warm start), each phase after the first is one here: `online` is the mean of the metric over its epochs, and `kept` the
test accuracy right after the boundary. Configurations are not kept: all runs of a stream are alike but for the method's
options and the learning rate, which `collect` checks; the options are in conf/tuned/searched.yaml and in the table of
the search.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import streams
from analysis.estimates import FEWEST, Estimate, Paired, holm, mean, paired, widened_tail
from analysis.runs import BadRun, Run, method_groups

COLUMNS = ["method", "seed", "task", "value", "online", "kept"]
AFTER = "boundary/test_accuracy_after"
REFERENCES = ("base", "full_reset", "fire")
RESAMPLES = 2000


def name_of(run: Run) -> str:
    """A stream's name, of its files and in conf/tuned/searched.yaml."""
    return f"{run.benchmark}_{run.dataset}"


def collect(runs: Iterable[Run]) -> dict[str, pd.DataFrame]:
    """The table of each stream, by its name.

    Raises:
        BadRun: runs of a stream differ in more than the method and its learning rate.
    """
    by_stream: dict[str, list[Run]] = {}
    for run in runs:
        if run.is_stream or run.domain == "vision":
            by_stream.setdefault(name_of(run), []).append(run)
    for name, members in by_stream.items():
        if len({alike(run) for run in members}) > 1:
            raise BadRun(f"{name}: runs differ in more than the method and the learning rate; give each its own folder")
    return {name: table(members) for name, members in sorted(by_stream.items())}


def alike(run: Run) -> str:
    """The setting less the learning rate, which is tuned for each method."""
    metric, rest = json.loads(run.setting)
    rest.pop("lr", None)
    rest["optimizer"] = {key: value for key, value in (rest.get("optimizer") or {}).items() if key != "lr"}
    return json.dumps([metric, rest], sort_keys=True)


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """Rows of the runs of one stream; several variants of a method are named by what distinguishes them."""
    parts = []
    for group in method_groups(runs):
        for run in group.runs:
            columns = [group.label, run.seed, *(of_tasks(run) if run.is_stream else of_phases(run))]
            parts.append(pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))))
    return pd.concat(parts, ignore_index=True)


def of_tasks(run: Run) -> list[Any]:
    """The columns from `task` on, of a stream of tasks."""
    ends = run.history[run.history[streams.TASK].notna()]
    kept = np.full(len(ends), np.nan)
    if streams.KEPT in run.boundaries:
        at = run.boundaries["phase"].to_numpy(int)
        kept[at] = run.boundaries[streams.KEPT].to_numpy(float)
    online = next(key for key in streams.ONLINE if key in ends)
    return [ends[streams.TASK].astype(int), ends[run.metric], ends[online], kept]


def of_phases(run: Run) -> list[Any]:
    """The same of a run whose phases after the first are taken for tasks."""
    later = run.history[run.history["phase"] > 0].groupby("phase")[run.metric]
    at = run.boundaries.set_index("phase")[AFTER].reindex(later.last().index)
    return [later.last().index.to_numpy(), later.last().to_numpy(), later.mean().to_numpy(), at.to_numpy(float)]


def read(path: Path) -> pd.DataFrame:
    """A table that `write` wrote."""
    return pd.read_csv(path, dtype={"method": str})


def write(frame: pd.DataFrame, path: Path) -> None:
    """As CSV, with five digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, float_format="%.5g", lineterminator="\n")


def methods(frame: pd.DataFrame) -> list[str]:
    """The methods of a table, in its order."""
    return list(dict.fromkeys(frame["method"]))


def by_seed(frame: pd.DataFrame, method: str, part: slice = slice(None), column: str = "value") -> dict[int, float]:
    """Of each seed the mean of a column over some of the tasks."""
    rows = frame[frame["method"] == method]
    return {int(str(seed)): float(one[column].iloc[part].mean()) for seed, one in rows.groupby("seed")}


def compare(frame: pd.DataFrame, more: bool = True) -> pd.DataFrame:
    """A row for each method, the best first: means with 95 % t-intervals over seeds, and paired differences.

    Args:
        frame: of one stream.
        more: whether more is better.

    Returns:
        `all tasks` is the mean over tasks of the value at the end of each; `first k`, `last k` that over the first and
        the last tenth of the tasks, where there are several; `previous task` the mean of `kept`; `online` the average
        over all epochs. The p values of the differences are corrected by Holm's method over the whole table.
    """
    whole = {method: by_seed(frame, method) for method in methods(frame)}
    order = sorted(whole, key=lambda m: -np.mean(list(whole[m].values())) if more else np.mean(list(whole[m].values())))
    tasks = int(frame["task"].max())
    few = max(1, round(streams.SHARE * tasks))

    def over(part: slice, column: str = "value") -> list[Estimate]:
        return [mean(list(by_seed(frame, method, part, column).values())) for method in order]

    columns: dict[str, object] = {
        "method": order,
        "n": [len(whole[method]) for method in order],
        "all tasks": over(slice(None)),
    }
    if tasks > 1:
        columns |= {f"first {few}": over(slice(0, few)), f"last {few}": over(slice(-few, None))}
    columns["online"] = over(slice(-1, None), "online")
    if frame["kept"].notna().any():
        columns["previous task"] = over(slice(None), "kept")
    pairs = {
        reference: [None if method == reference else paired(whole[method], whole[reference]) for method in order]
        for reference in REFERENCES
        if reference in whole
    }
    corrected = iter(holm([pair.p if pair else np.nan for column in pairs.values() for pair in column]))
    for reference, column in pairs.items():
        columns[f"vs {reference}"] = [with_holm(pair, float(next(corrected))) for pair in column]
    return pd.DataFrame(columns)


def with_holm(pair: Paired | None, p: float) -> Paired | None:
    """The comparison with its corrected p value."""
    return None if pair is None else Paired(pair.difference, pair.effect, pair.p, p)


def ranks(frames: Mapping[str, pd.DataFrame], fewer_is_better: Iterable[str] = ()) -> pd.DataFrame:
    """Mean rank over streams of the methods that all of them have; 1 is best, ties share.

    Its 95 % interval is a percentile bootstrap: seeds are resampled within each stream, the same for all methods, as
    they share a stream's tasks; then methods are ranked anew. Streams are not resampled: it speaks of these streams.

    Args:
        frames: by stream.
        fewer_is_better: streams of a loss.

    Returns:
        A row for each method, the best mean rank first: `mean rank`, and of each stream the rank and the value.
    """
    shared = [m for m in methods(next(iter(frames.values()))) if all(m in methods(f) for f in frames.values())]
    rng = np.random.default_rng(0)
    points, fewest, draws, cells = [], [], np.zeros((RESAMPLES, len(shared))), {}
    for name, frame in frames.items():
        whole = [by_seed(frame, method) for method in shared]
        seeds = sorted(set.intersection(*(set(one) for one in whole)))
        fewest.append(len(seeds))
        values = np.array([[one[seed] for seed in seeds] for one in whole])  # (methods, seeds)
        means = values.mean(1)
        values = values if name in set(fewer_is_better) else -values
        points.append(pd.Series(values.mean(1)).rank().to_numpy())
        cells[name] = [f"{rank:g} ({value:.3f})" for rank, value in zip(points[-1], means, strict=True)]
        resampled = values[:, rng.integers(0, len(seeds), (RESAMPLES, len(seeds)))].mean(2)  # (methods, resamples)
        draws += pd.DataFrame(resampled).rank().to_numpy().T / len(frames)
    tail = widened_tail(min(fewest)) if min(fewest) >= FEWEST else np.nan
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0) if tail == tail else np.full((2, len(shared)), np.nan)
    middle = np.mean(points, 0)
    order = np.argsort(middle, kind="stable")
    columns: dict[str, object] = {
        "method": [shared[i] for i in order],
        "mean rank": [Estimate(float(middle[i]), float(low[i]), float(high[i]), min(fewest)) for i in order],
    }
    return pd.DataFrame(columns | {name: [column[i] for i in order] for name, column in cells.items()})
