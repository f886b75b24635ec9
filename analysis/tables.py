"""Tables of runs: how each method of a setting ended, and the paper's table 10.

Of a stream a column first averages the tasks of a run, so that the unit of all intervals and tests is the seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import streams
from analysis.arrays import Floats
from analysis.boundaries import FIRING
from analysis.estimates import Estimate, Paired, holm, mean, paired
from analysis.runs import Group, Run, Setting, bounds_of

REFERENCES = ("base", "fire")  # what each method is compared with
SHARE = 0.1  # of the tasks: the first, and the last
Numbers = dict[int, float]  # by seed


@dataclass(frozen=True)
class Column:
    """A column of estimates in the table of results.

    Attributes:
        heading: of the table; `{few}` in it is the number of tasks in a tenth of them.
        of: a column of `rows_of`.
        tasks: over which tasks of a run it is averaged: `all`, `first tenth`, `last tenth` or `last`.
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
    """One row a method: how its runs ended, and the paired differences to base and to FIRE, with Holm's correction.

    Of agents the other return too: that of training episodes beside evaluations, and of greedy evaluations where tasks
    are scored by training episodes. Differences are of the first column.
    """
    groups = setting.groups
    rows = {group.key: pd.concat([rows_of(run).assign(seed=run.seed) for run in group.runs]) for group in groups}
    every = pd.concat(rows.values())
    tasks = every["task"].nunique() if "task" in every else 1
    few = max(1, round(SHARE * tasks))
    table: dict[str, list[object]] = {"method": [group.label for group in groups], "n": [seeds(g) for g in groups]}
    first, *_ = columns = OF_STREAM if setting.runs[0].is_stream else OF_RUN
    for column in columns:
        has_numbers = column.of in every and bool(every[column.of].notna().any())
        if has_numbers and (tasks > 1 or "tenth" not in column.tasks):
            means = (mean([*by_seed(rows[group.key], column, few).values()]) for group in groups)
            bounds = bounds_of(setting.metric) if setting.domain != "rl" else (-np.inf, np.inf)
            table[column.heading.format(few=few)] = [within(estimate, bounds) for estimate in means]
    numbers = {key: by_seed(members, first, few) for key, members in rows.items()}
    references = [group for method in REFERENCES if (group := setting.group(method)) is not None]
    differences = compare(numbers, [group.key for group in references])
    for reference in references:
        table[f"vs {reference.label}"] = [differences.get((group.key, reference.key)) for group in groups]
    return pd.DataFrame(table)


def compare(numbers: Mapping[str, Numbers], references: Sequence[str]) -> dict[tuple[str, str], Paired]:
    """Paired differences of every method to each reference, with p values corrected over all of them.

    A reference against another one, and that one against it, are a single comparison of the family.

    Args:
        numbers: by method, one number a seed.
        references: those of the methods that the others are compared with.

    Returns:
        (method, reference) -> the difference; no entry where two have no seed in common.
    """
    pairs = {
        (method, reference): pair
        for reference in references
        for method in numbers
        if method != reference and (pair := paired(numbers[method], numbers[reference])) is not None
    }
    p_values = {frozenset(methods): pair.p for methods, pair in pairs.items()}
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return {methods: replace(pair, p_holm=float(corrected[frozenset(methods)])) for methods, pair in pairs.items()}


def by_seed(rows: pd.DataFrame, column: Column, few: int) -> Numbers:
    """The mean of a column over some tasks, for each seed.

    Args:
        rows: a row for each task of each run, in the order of the tasks.
        column: of which number, and over which tasks.
        few: how many tasks the first and the last tenth have.
    """
    parts = {"first tenth": slice(0, few), "last tenth": slice(-few, None), "last": slice(-1, None)}
    part = parts.get(column.tasks, slice(None))
    numbers: Numbers = {}
    for seed, run in rows.groupby("seed"):
        values = run[column.of].to_numpy(float)[part]
        numbers[int(str(seed))] = streams.mean(values[~np.isnan(values)])
    return numbers


def within(estimate: Estimate, bounds: tuple[float, float]) -> Estimate:
    """An estimate whose interval does not leave what values lie between."""
    return replace(estimate, low=max(estimate.low, bounds[0]), high=min(estimate.high, bounds[1]))


def rows_of(run: Run) -> pd.DataFrame:
    """What the table shows of a run: a row for each task of a stream, else one row."""
    if run.is_stream:
        return of_tasks(run)
    row = {"final": run.final(), "best": run.best()}
    if run.metric == "eval/return" and "train/return" in run.history:
        row["training"] = float(run.last_quarter["train/return"].mean())
    return pd.DataFrame([row])


def of_tasks(run: Run) -> pd.DataFrame:
    """A row for each task of a stream; of agents with the return of evaluations.

    `value` is the metric at the end of the task, `online` its average over the run so far, and `kept` the accuracy on
    the task before, right after the boundary.
    """
    ends = run.history[run.history[streams.TASK].notna()]
    online = next(key for key in streams.ONLINE if key in ends)
    columns = {"value": run.metric, "online": online}
    if run.metric == "task/return":
        columns["evaluation"] = "eval/return"
    numbers = pd.DataFrame({name: ends[key] for name, key in columns.items() if key in ends})
    return numbers.assign(task=ends[streams.TASK].astype(int), kept=of_boundaries(run, streams.KEPT, ends["phase"]))


def of_boundaries(run: Run, column: str, phases: Iterable[Any]) -> Floats:
    """A number of the boundary that begins each of the phases; NaN where there is none."""
    acted = run.boundaries
    if FIRING in acted:
        acted = acted[acted[FIRING] == 0]
    if column not in acted:
        return np.full(len([*phases]), np.nan)
    numbers: Floats = acted.set_index("phase")[column].reindex([*phases]).to_numpy(float)
    return numbers


def seeds(group: Group) -> int | str:
    """The number of seeds, and how many of them ended in NaN and are left out of means."""
    diverged = sum(abs(run.score()) == float("inf") for run in group.runs)
    return f"{len(group.runs)} ({diverged} diverged)" if diverged else len(group.runs)


def convergence(settings: Sequence[Setting]) -> pd.DataFrame:
    """The paper's table 10, from runs: how FIRE computed -> DfI and SFE at boundaries.

    With the rows of base and full reset, which are what it can be measured by; how runs ended, `results` says.
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
            for text, key in (("DfI before", "dfi_before"), ("DfI after", "dfi_after"), ("SFE", "sfe")):
                column = f"boundary/{key}"
                row[text] = mean([run.boundaries[column].mean() for run in group.runs if column in run.boundaries])
            rows.append(row)
    return pd.DataFrame(rows).dropna(axis="columns", how="all") if rows else pd.DataFrame()


def options(group: Group) -> dict[str, object]:
    """The method's options, as all runs of the group have them."""
    method = group.runs[0].config["method"]
    return method if isinstance(method, dict) else {}


def at_boundaries(setting: Setting) -> pd.DataFrame:
    """What each method did at each boundary and how long it took, mean over seeds."""
    rows = []
    for group in setting.groups:
        every = pd.concat([run.boundaries for run in group.runs], ignore_index=True)
        columns = [str(name) for name in every if str(name).startswith("boundary/") or name == "method/seconds"]
        if not columns or "phase" not in every:
            continue
        for _, part in every.dropna(subset=columns, how="all").groupby("phase"):
            means = {readable(name): float(part[name].mean()) for name in columns}
            rows.append({"method": group.label, "phase": int(part["phase"].iloc[0]), **means})
    return pd.DataFrame(rows)


def readable(key: str) -> str:
    return key.rpartition("/")[2].replace("_", " ").replace("dfi", "DfI").replace("sfe", "SFE")
