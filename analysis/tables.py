"""Tables of runs: how each method of a setting ended, and the paper's table 10.

Of a stream a column first averages the tasks of a run, so that the unit of all intervals and tests is the seed.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from analysis import streams
from analysis.arrays import Floats
from analysis.boundaries import FIRING
from analysis.estimates import Estimate, Paired, holm, mean, paired
from analysis.runs import Group, Run, Setting, bounds_of

REFERENCES = ("base", "fire")  # methods that each other method is compared with
VERSUS = "vs "  # begins the headings of the columns of differences
SHARE = 0.1  # of a stream's tasks, in the columns of its first and its last tasks
Numbers = dict[int, float]  # seed -> number
K = TypeVar("K", bound=Hashable)  # what names a method's runs


@dataclass(frozen=True)
class Column:
    """A column of estimates in the table of results.

    Attributes:
        heading: the column's heading; `{few}` in it stands for the number of tasks in a tenth of the stream.
        of: the column of `rows_of` that is averaged.
        tasks: the tasks of a run over which it is averaged: `all`, `first tenth`, `last tenth` or `last`.
    """

    heading: str
    of: str
    tasks: str = "all"


OF_RUN = (Column("final", "final"), Column("best", "best"), Column("training return", "training"))
OF_STREAM = (
    Column("all tasks", "value"),
    Column("first {few}", "value", "first tenth"),
    Column("last {few}", "value", "last tenth"),
    Column("online", "online", "last"),
    Column("previous task", "kept"),
    Column("evaluation, all tasks", "evaluation"),
)


def results(setting: Setting) -> pd.DataFrame:
    """Return a table with a row for each method: how its runs ended, and its paired differences to base and to FIRE.

    Differences are of the first column of estimates, with p values after Holm's correction. Agents have both returns:
    that of training episodes beside evaluations, or that of greedy evaluations beside tasks' training episodes.
    """
    groups = setting.groups
    rows = [pd.concat([rows_of(run).assign(seed=run.seed) for run in group.runs]) for group in groups]
    all_rows = pd.concat(rows)
    tasks = all_rows["task"].nunique() if "task" in all_rows else 1
    few = max(1, round(SHARE * tasks))
    table: dict[str, list[object]] = {"method": [group.label for group in groups], "n": [seeds(g) for g in groups]}
    columns = OF_STREAM if setting.runs[0].is_stream else OF_RUN
    for column in columns:
        has_numbers = column.of in all_rows and bool(all_rows[column.of].notna().any())
        if has_numbers and (tasks > 1 or "tenth" not in column.tasks):
            means = (mean([*by_seed(rows_of_group, column, few).values()]) for rows_of_group in rows)
            bounds = bounds_of(setting.metric) if setting.domain != "rl" else (-np.inf, np.inf)
            table[column.heading.format(few=few)] = [within(estimate, bounds) for estimate in means]
    references = [groups.index(group) for method in REFERENCES if (group := setting.group(method)) is not None]

    def numbers(number: int, reference: int) -> tuple[Numbers, Numbers]:
        ours, theirs = of_common_tasks(rows[number], rows[reference], columns[0])
        return by_seed(ours, columns[0], few), by_seed(theirs, columns[0], few)

    differences = compare(range(len(rows)), references, numbers)
    for reference in references:
        table[f"{VERSUS}{groups[reference].label}"] = [differences.get((i, reference)) for i in range(len(rows))]
    return pd.DataFrame(table)


def without_differences(setting: Setting) -> str:
    """Return a sentence about methods that `results` has no differences to, as they have several variants; or none."""
    several = [f"method={m}" for m in REFERENCES if sum(group.method == m for group in setting.groups) > 1]
    names = " and ".join(several)
    return f"There are no differences to {names}, of which there are several variants." if several else ""


def of_common_tasks(ours: pd.DataFrame, theirs: pd.DataFrame, column: Column) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of two methods, of each seed those of the tasks of which both runs have a number.

    An unfinished run has fewer tasks, and an agent's task has no number if no episode has ended in it.
    """
    keys = [key for key in ("seed", "task") if key in ours]
    with_numbers = (rows.dropna(subset=[column.of]).set_index(keys) for rows in (ours, theirs))
    first, second = with_numbers
    common = first.index.intersection(second.index)
    return first.loc[common].reset_index(), second.loc[common].reset_index()


def compare(
    methods: Iterable[K], references: Sequence[K], numbers: Callable[[K, K], tuple[Numbers, Numbers]]
) -> dict[tuple[K, K], Paired]:
    """Return the paired differences of every method to each reference, with p values corrected over all of them.

    Two references are compared with each other in both directions; this counts as one comparison of the family.

    Args:
        methods: all methods, the references among them.
        references: the methods that all others are compared with.
        numbers: (method, reference) -> for each of the two one number for each seed.

    Returns:
        (method, reference) -> the difference; pairs without a common seed have no entry.
    """
    all_methods = [*methods]
    pairs = {
        (method, reference): pair
        for reference in references
        for method in all_methods
        if method != reference and (pair := paired(*numbers(method, reference))) is not None
    }
    p_values = {frozenset(methods): pair.p for methods, pair in pairs.items()}
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return {methods: replace(pair, p_holm=float(corrected[frozenset(methods)])) for methods, pair in pairs.items()}


def by_seed(rows: pd.DataFrame, column: Column, few: int) -> Numbers:
    """Return the mean of a column over some tasks, for each seed; inf for a seed that diverged.

    Args:
        rows: a row for each task of each run, in the order of the tasks, with `seed`.
        column: says which number is averaged, and over which tasks.
        few: number of tasks in the first and in the last tenth.
    """
    parts = {"first tenth": slice(0, few), "last tenth": slice(-few, None), "last": slice(-1, None)}
    part = parts.get(column.tasks, slice(None))
    numbers: Numbers = {}
    for seed, run in rows.groupby("seed"):
        if np.isinf(run["value" if "value" in run else "final"]).any():
            numbers[int(str(seed))] = np.inf
            continue
        values = run[column.of].to_numpy(float)[part]
        numbers[int(str(seed))] = streams.mean(values[~np.isnan(values)])
    return numbers


def within(estimate: Estimate, bounds: tuple[float, float]) -> Estimate:
    """Return an estimate with its interval cut off at the bounds of the values."""
    return replace(estimate, low=max(estimate.low, bounds[0]), high=min(estimate.high, bounds[1]))


def rows_of(run: Run) -> pd.DataFrame:
    """Return a run's numbers for the table: a row for each task of a stream, else one row."""
    if run.is_stream:
        return task_rows(run)
    row = {"final": run.final(), "best": run.best()}
    if run.metric == "eval/return" and "train/return" in run.history and not run.has_diverged:
        row["training"] = float(run.last_quarter["train/return"].mean())
    return pd.DataFrame([row])


def task_rows(run: Run) -> pd.DataFrame:
    """Return a row for each task of a stream.

    `value` is the metric at the end of the task, `online` its average over the run so far, and `kept` the accuracy on
    the previous task right after the boundary. Agents also have `evaluation`, the return of evaluations. A run that
    diverged has inf in a last row, for the task in which it did.
    """
    ends = run.history[run.history[streams.TASK].notna()]
    online = next(key for key in streams.ONLINE if key in ends)
    columns = {"value": run.metric, "online": online}
    if run.metric == "task/return":
        columns["evaluation"] = "eval/return"
    numbers = pd.DataFrame({name: ends[key] for name, key in columns.items() if key in ends})
    numbers = numbers.assign(
        task=ends[streams.TASK].astype(int), kept=boundary_numbers(run, streams.KEPT, ends["phase"])
    )
    if run.has_diverged:
        lost = pd.DataFrame([{"task": len(ends) + 1, "value": np.inf}])
        numbers = pd.concat([numbers, lost], ignore_index=True) if len(numbers) else lost.reindex(columns=[*numbers])
    return numbers


def boundary_numbers(run: Run, column: str, phases: Iterable[Any]) -> Floats:
    """Return a number of the boundary before each of the phases, (phases,); NaN if a boundary lacks it."""
    acted = run.boundaries
    if FIRING in acted:
        acted = acted[acted[FIRING] == 0]
    if column not in acted:
        return np.full(len([*phases]), np.nan)
    numbers: Floats = acted.set_index("phase")[column].reindex([*phases]).to_numpy(float)
    return numbers


def seeds(group: Group) -> int | str:
    """Return the number of seeds, with those that diverged, which means leave out, and those of unfinished runs."""
    diverged = [run for run in group.runs if abs(run.score()) == float("inf")]
    unfinished = [run for run in group.runs if not run.finished and run not in diverged]
    counts = {"diverged": len(diverged), "unfinished": len(unfinished)}
    notes = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{len(group.runs)} ({notes})" if notes else len(group.runs)


def convergence(settings: Sequence[Setting]) -> pd.DataFrame:
    """Return the paper's table 10 from runs: DfI and SFE at boundaries for each way of computing FIRE.

    They are summed over all weight matrices. Where FIRE projects some of them alone (of a ViT q and k), the DfI of
    these stands beside. Base and full reset have rows too, for comparison. `results` has the accuracies.
    """
    rows = []
    for setting in settings:
        logged = [group for group in setting.groups if "boundary/dfi_after" in group.runs[0].boundaries]
        if not any("solver" in options(group) for group in logged):
            continue
        for group in logged:
            if "solver" not in options(group) and group.method not in ("base", "full_reset"):
                continue
            row: dict[str, object] = {"setting": setting.name} if len(settings) > 1 else {}
            row["method"] = group.label
            for key in ("dfi_before", "dfi_after", "sfe", "dfi_projected_before", "dfi_projected_after"):
                column = f"boundary/{key}"
                values = [run.boundaries[column].mean() for run in group.runs if column in run.boundaries]
                if values:
                    row[readable(column)] = mean(values)
            rows.append(row)
    return pd.DataFrame(rows).dropna(axis="columns", how="all") if rows else pd.DataFrame()


def options(group: Group) -> dict[str, object]:
    """Return the method's options, which all runs of a group share."""
    method = group.runs[0].config["method"]
    return method if isinstance(method, dict) else {}


def at_boundaries(setting: Setting) -> pd.DataFrame:
    """Return a table of what each method changed at each boundary and how long it took, as means over seeds."""
    rows = []
    for group in setting.groups:
        acts = pd.concat([run.boundaries for run in group.runs], ignore_index=True)
        if FIRING in acts:  # what a trigger did is no boundary's
            acts = acts[acts[FIRING].fillna(0) == 0]
        columns = [str(name) for name in acts if str(name).startswith("boundary/") or name == "method/seconds"]
        if not columns or "phase" not in acts:
            continue
        for _, part in acts.dropna(subset=columns, how="all").groupby("phase"):
            means = {readable(name): float(part[name].mean()) for name in columns}
            rows.append({"method": group.label, "phase": int(part["phase"].iloc[0]), **means})
    return pd.DataFrame(rows)


def readable(key: str) -> str:
    """Return a column's heading for the name of a number: `boundary/dfi_after` becomes `DfI after`."""
    return key.rpartition("/")[2].replace("_", " ").replace("dfi", "DfI").replace("sfe", "SFE")
