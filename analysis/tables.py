"""Tables of runs: how each method of a setting ended, and the paper's table 10."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analysis.estimates import Estimate, mean
from analysis.runs import Group, Run, Setting, bounds_of
from analysis.stream_rows import of_tasks
from analysis.summary import Column, Table, summarise

REFERENCES = ("base", "fire")  # what each method is compared with
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
    columns = OF_STREAM if setting.runs[0].is_stream else OF_RUN
    references = [group for method in REFERENCES if (group := setting.group(method)) is not None]
    compared = [Column(f"vs {group.label}", columns[0].of, "all", "difference", group.key) for group in references]
    rows = [rows_of(run).assign(method=group.key, seed=run.seed) for group in setting.groups for run in group.runs]
    table = summarise(pd.concat(rows, ignore_index=True), Table((*columns, *compared)))
    if setting.domain != "rl":
        table = table.map(within, bounds=bounds_of(setting.metric))
    return table.assign(method=[g.label for g in setting.groups], n=[seeds(g) for g in setting.groups])


def within(cell: object, bounds: tuple[float, float]) -> object:
    """An entry whose interval does not leave what values lie between; differences as they are."""
    if not isinstance(cell, Estimate):
        return cell
    return replace(cell, low=max(cell.low, bounds[0]), high=min(cell.high, bounds[1]))


def rows_of(run: Run) -> pd.DataFrame:
    """What the table shows of a run: a row for each task of a stream, else one row."""
    if run.is_stream:
        return of_tasks(run)
    row = {"final": run.final(), "best": run.best()}
    if run.metric == "eval/return" and "train/return" in run.history:
        row["training"] = float(run.last_quarter["train/return"].mean())
    return pd.DataFrame([row])


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
