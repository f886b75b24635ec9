"""Tables of results from small csv files: a row for each method, and columns that say what they show.

The files have a row for each task of each run (`method`, `seed`, `task`, numbers). A `Column` takes one of the numbers,
averages it over some of a seed's tasks, and shows a statistic of the seeds' averages: seeds are the unit of all
intervals and tests.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import streams
from analysis.estimates import FEWEST, Estimate, Paired, holm, mean, paired, widened_tail
from analysis.forms import names, winners
from analysis.rl import probability_of_improvement, stratified

RESAMPLES = 2000
Numbers = dict[int, float]  # by seed


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        heading: of the table; `{few}` in it is the number of tasks in a tenth of them.
        of: column of the file.
        tasks: `all`, `first`, `last`, `first tenth`, `last tenth`, `last third` or `last 3`.
        statistic: `mean` with a 95 % t-interval, `count` (the mean alone, with one decimal); against another row
            `difference` (paired by seed, with Holm's correction) or `better` (the probability).
        against: that row.
    """

    heading: str
    of: str
    tasks: str = "all"
    statistic: str = "mean"
    against: str = ""


@dataclass(frozen=True)
class Table:
    """What a table shows.

    Args:
        columns: from the third on; the first two are the row's name and the number of seeds.
        order: heading of the column that orders the rows, the best first; empty: as they are in the file.
        rows: column of the file that names the rows.
        family: whose p values are corrected together: those of the `table`, or of each `column`.
    """

    columns: tuple[Column, ...]
    order: str = ""
    rows: str = "method"
    family: str = "table"


def differences(of: str, *against: str, tasks: str = "all") -> tuple[Column, ...]:
    """Paired differences to several rows."""
    return tuple(Column(f"vs {row}", of, tasks, "difference", row) for row in against)


def read(path: str | object) -> pd.DataFrame:
    """A small csv file."""
    return pd.read_csv(str(path), dtype={"method": str, "options": str})


def methods(frame: pd.DataFrame) -> list[str]:
    """The methods of a table, in its order."""
    return [str(method) for method in frame["method"].unique()]


def by_seed(rows: pd.DataFrame, part: slice = slice(None), column: str = "value") -> Numbers:
    """Of each seed the mean of a column over some of the tasks."""
    seeds, values = rows["seed"].to_numpy(), rows[column].to_numpy(np.float64)
    of_seeds = {int(seed): values[seeds == seed][part] for seed in np.unique(seeds)}
    return {seed: streams.mean(of_seed[~np.isnan(of_seed)]) for seed, of_seed in of_seeds.items()}


def few_of(tasks: int) -> int:
    """A tenth of the tasks, at least one."""
    return max(1, round(streams.SHARE * tasks))


def part_of(tasks: str, count: int) -> slice:
    """Which of `count` tasks a column takes."""
    few, third = few_of(count), max(1, count // 3)
    first, last = {"first": 1, "first tenth": few}, {"last": 1, "last tenth": few, "last third": third, "last 3": 3}
    return slice(0, first[tasks]) if tasks in first else slice(-last[tasks], None) if tasks in last else slice(None)


def summarise(frame: pd.DataFrame, table: Table, more: bool = True) -> pd.DataFrame:
    """The table of a file's rows; columns that it has no numbers for are left out.

    Args:
        frame: a row for each task of each run, or for each run.
        table: what to show.
        more: whether more is better.
    """
    count = frame["task"].nunique() if "task" in frame else 1
    rows = {str(name): part for name, part in frame.groupby(table.rows, sort=False)}
    columns = [column for column in table.columns if has(column, frame, rows, count)]
    numbers = {
        column: {name: by_seed(part, part_of(column.tasks, count), column.of) for name, part in rows.items()}
        for column in columns
    }
    order = list(rows)
    for column in columns:
        if column.heading == table.order:
            means = {name: float(np.mean([*numbers[column][name].values()])) for name in rows}
            order.sort(key=lambda name: round(means[name], 9) * (-1 if more else 1))  # a mean's last bit is the CPU's
    out: dict[str, list[object]] = {table.rows: [*order], "n": [rows[name]["seed"].nunique() for name in order]}
    for column in columns:
        ours = [numbers[column][name] for name in order]
        theirs = numbers[column].get(column.against, {})
        out[column.heading.format(few=few_of(count))] = [
            None if name == column.against else cell(column.statistic, one, theirs)
            for name, one in zip(order, ours, strict=True)
        ]
    compared = [column for column in columns if column.statistic == "difference"]
    for family in [compared] if table.family == "table" else [[column] for column in compared]:
        correct(
            [out[column.heading.format(few=few_of(count))] for column in family],
            [[(column.of, column.tasks, frozenset((name, column.against))) for name in order] for column in family],
        )
    return pd.DataFrame(out)


def has(column: Column, frame: pd.DataFrame, rows: Mapping[str, pd.DataFrame], tasks: int) -> bool:
    """Whether there is something to show: numbers, more than one task for a tenth of them, the row to compare with."""
    several = tasks > 1 or "tenth" not in column.tasks
    is_there = column.of in frame and bool(frame[column.of].notna().any())
    return is_there and several and (not column.against or column.against in rows)


def cell(statistic: str, ours: Numbers, theirs: Numbers) -> object:
    """An entry of a table; `theirs` are the numbers of the row that it is compared with."""
    values = np.array([*ours.values()])
    if statistic == "mean":
        return mean(values)
    if statistic == "count":
        return f"{np.nanmean(values) if np.isfinite(values).any() else float('nan'):.1f}"
    if statistic == "better":
        return stratified(probability_of_improvement, [values], [np.array([*theirs.values()])])
    return paired(ours, theirs)


def grid(runs: pd.DataFrame, by: str, columns: Mapping[Any, str], shown: Mapping[str, int]) -> pd.DataFrame:
    """Means of methods, a row for each, the best first, in settings, a column for each; the second mean in brackets.

    Args:
        runs: a row for each run.
        by: column of the settings.
        columns: settings, and their headings.
        shown: two columns of numbers, and their decimals; the first orders.
    """
    (first, digits), (second, fewer) = shown.items()
    order = runs.groupby("method")[first].mean().round(9).sort_values(ascending=False, kind="stable").index
    table: dict[str, list[object]] = {"method": [*order]}
    for setting, heading in columns.items():
        means = runs[runs[by] == setting].groupby("method")[[first, second]].mean().loc[order].to_numpy()
        table[heading] = [f"{one:.{digits}f} ({other:.{fewer}f})" for one, other in means]
    return pd.DataFrame(table)


def correct(columns: Sequence[list[object]], comparisons: Sequence[Sequence[Hashable]] | None = None) -> None:
    """Give the differences in these columns their p values corrected by Holm's method, in place.

    Args:
        columns: cells of a table; those that are no `Paired` are no comparisons.
        comparisons: what each cell compares. Cells with the same comparison, such as FIRE in the column against base
            and base in the column against FIRE, count once. None: each cell is a comparison of its own.
    """
    pairs: dict[tuple[int, int], Paired] = {}  # by column and row
    for number, column in enumerate(columns):
        pairs |= {(number, row): cell for row, cell in enumerate(column) if isinstance(cell, Paired)}
    keys = {(number, row): comparisons[number][row] if comparisons else (number, row) for number, row in pairs}
    p_values = {keys[place]: pair.p for place, pair in pairs.items()}
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    for (number, row), pair in pairs.items():
        columns[number][row] = replace(pair, p_holm=float(corrected[keys[number, row]]))


def ranks(frames: Mapping[str, pd.DataFrame], losses: Iterable[str] = (), crossed: bool = False) -> pd.DataFrame:
    """Mean rank over streams of the methods that all of them have; 1 is best, ties share.

    Its 95 % interval is a percentile bootstrap: seeds are resampled within each stream, the same for all methods, as
    they share a stream's tasks; then methods are ranked anew. Streams are not resampled: it speaks of these streams.

    Args:
        frames: by stream.
        losses: streams of which less is better.
        crossed: the frames are searches on one stream, reported on the same seeds: both are resampled.

    Returns:
        A row for each method, the best mean rank first: `mean rank`, and of each stream the rank and the value.
    """
    shared = [m for m in methods(next(iter(frames.values()))) if all(m in methods(f) for f in frames.values())]
    rng, count = np.random.default_rng(0), 25 * RESAMPLES if crossed else RESAMPLES
    points, fewest, cells = [], [len(frames)] * crossed, {}
    drawn = []  # of each frame the ranks, (count, methods)
    common = set.intersection(*(set(frame["seed"]) for frame in frames.values())) if crossed else None
    for name, frame in frames.items():
        frame = frame if common is None else frame[frame["seed"].isin(common)]
        whole = [by_seed(frame[frame["method"] == method]) for method in shared]
        seeds = sorted(set.intersection(*(set(one) for one in whole)))
        fewest.append(len(seeds))
        values = np.array([[one[seed] for seed in seeds] for one in whole])  # (methods, seeds)
        means = values.mean(1)
        values = values if name in set(losses) else -values
        points.append(pd.Series(values.mean(1)).rank())
        cells[name] = [f"{rank:g} ({value:.3f})" for rank, value in zip(points[-1], means, strict=True)]
        rng = np.random.default_rng(0) if crossed else rng
        resampled = values[:, rng.integers(0, len(seeds), (count, len(seeds)))].mean(2)  # (methods, resamples)
        drawn.append(pd.DataFrame(resampled).rank().to_numpy().T)
    picks = rng.integers(0, len(drawn), (len(drawn), count)) if crossed else np.arange(len(drawn))[:, None]
    draws = np.stack(drawn)[picks, np.arange(count)].mean(0)
    tail = widened_tail(min(fewest)) if min(fewest) >= FEWEST else np.nan
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0) if tail == tail else np.full((2, len(shared)), np.nan)
    middle = np.mean(points, 0)
    order = np.argsort(middle, kind="stable")
    columns: dict[str, object] = {
        "method": [shared[i] for i in order],
        "mean rank": [Estimate(float(middle[i]), float(low[i]), float(high[i]), min(fewest)) for i in order],
    }
    return pd.DataFrame(columns | {name: [column[i] for i in order] for name, column in cells.items()})


def chosen(searched: pd.DataFrame, more: bool = True) -> pd.DataFrame:
    """What a search chose for each method, beside its defaults on the same seeds."""
    rows = []
    for method in methods(searched):
        trials = searched[searched["method"] == method].sort_values("trial").fillna({"options": ""})
        known = trials.dropna(subset="score").sort_values("score", ascending=not more, kind="stable")
        row: dict[str, object] = {
            "method": names([method], winners(trials, more))[method],
            "diverged": len(trials) - len(known),
            "defaults": float(trials["score"].iloc[0]),
        }
        if len(known):
            best = known.iloc[0]
            row |= {"best": float(best["score"]), "options of the best": str(best["options"]) or "the defaults"}
        rows.append(row)
    return pd.DataFrame(rows)


def correlations(signals: pd.DataFrame, shown: Mapping[str, str], with_: str) -> pd.DataFrame:
    """How signals rank checkpoints beside what a probe gives there: Spearman's, one number a seed.

    Args:
        signals: a row for each checkpoint.
        shown: columns of signals, and their names.
        with_: column of what the probe gives.
    """
    is_base = signals["method"] == "base"
    columns: dict[str, tuple[pd.DataFrame, str]] = {
        "along a run, no intervention": (signals[is_base], "method"),
        "along a run, with a method": (signals[~is_base], "method"),
        "between methods, same age": (signals, "step"),
    }

    def over_seeds(rows: pd.DataFrame, name: str, groups: str) -> Estimate:
        """Within each group of checkpoints, then the mean of a seed's groups."""
        found = [
            np.array([spearman(group[name], group[with_]) for _, group in seed.groupby(groups)])
            for _, seed in rows.groupby("seed")
        ]
        return mean([float(np.nanmean(values)) if np.isfinite(values).any() else np.nan for values in found])

    return pd.DataFrame(
        [
            {"signal": words} | {heading: over_seeds(rows, name, by) for heading, (rows, by) in columns.items()}
            for name, words in shown.items()
        ]
    )


def spearman(one: pd.Series, other: pd.Series) -> float:
    """The rank correlation; NaN where one of them does not change."""
    a, b = one.rank(), other.rank()
    return float(a.corr(b)) if a.nunique() > 1 and b.nunique() > 1 else float("nan")
