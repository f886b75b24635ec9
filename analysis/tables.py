"""Tables of results as data frames whose cells are numbers, `Estimate` or `Paired`; `formats` writes them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis import streams, style
from analysis.estimates import Estimate, paired
from analysis.estimates import mean as estimate
from analysis.runs import METRICS, Group, Run, Setting
from analysis.summary import correct

REFERENCES = ("base", "fire")  # what each method is compared with


def results(setting: Setting, test: str = "t", interval: str = "t") -> pd.DataFrame:
    """One row a method: final and best value, and the paired differences of the final one to base and to FIRE.

    Of a stream of tasks, the columns of `streams.numbers`; the first takes the place of the final value. Of agents the
    other return too: that of training episodes beside evaluations, and of greedy evaluations where tasks are scored by
    training episodes. The column before it is the primary one, which differences are taken of.

    Args:
        setting: what was run.
        test: see `estimates.paired`.
        interval: see `estimates.mean`.
    """
    columns: dict[str, list[object]] = {
        "method": [label(group) for group in setting.groups],
        "n": [seeds(group) for group in setting.groups],
    }

    def over_seeds(of: Callable[[Run], float]) -> list[object]:
        return [estimate([of(run) for run in group.runs], interval) for group in setting.groups]

    if setting.groups[0].runs[0].is_stream:
        said = {run: streams.numbers(run.history, run.boundaries, run.metric) for g in setting.groups for run in g.runs}
        for name in dict.fromkeys(name for numbers in said.values() for name in numbers):
            columns[name] = over_seeds(lambda run, name=name: said[run].get(name, np.nan))  # type: ignore[misc]
    else:
        columns |= {"final": over_seeds(Run.final), "best": over_seeds(Run.best)}
    for name, of in other_returns(setting).items():
        columns[name] = over_seeds(of)
    references = {method: group for method in REFERENCES if (group := setting.group(method)) is not None}
    for method, column in comparisons(setting.groups, references, test).items():
        columns[f"vs {style.name(method)}"] = column
    return pd.DataFrame(columns)


def other_returns(setting: Setting) -> dict[str, Callable[[Run], float]]:
    """The return of agents that is not primary, by its column: of training or of evaluation, if all runs have it."""
    runs = [run for group in setting.groups for run in group.runs]
    if setting.metric == "task/return" and all("eval/return" in run.history for run in runs):
        return {"evaluation, all tasks": lambda run: streams.mean(streams.values(run.history, "eval/return"))}
    if setting.metric == "eval/return" and all("train/return" in run.history for run in runs):
        return {"training return": lambda run: float(run.last_quarter["train/return"].mean())}
    return {}


def comparisons(groups: Sequence[Group], references: Mapping[str, Group], test: str = "t") -> dict[str, list[object]]:
    """Each group against each reference, p values corrected by Holm's method for all that the table has."""
    found: dict[str, list[object]] = {
        method: [None if group is reference else paired(finals(group), finals(reference), test) for group in groups]
        for method, reference in references.items()
    }
    correct([*found.values()])
    return found


def finals(group: Group) -> dict[int, float]:
    return {run.seed: run.final() for run in group.runs}


def seeds(group: Group) -> int | str:
    """The number of seeds, and how many of them ended in NaN and are left out of means."""
    diverged = sum(not np.isfinite(value) for value in finals(group).values())
    return f"{len(group.runs)} ({diverged} diverged)" if diverged else len(group.runs)


def label(group: Group) -> str:
    return style.name(group.method) + (f" ({group.detail})" if group.detail else "")


def overhead(setting: Setting) -> pd.DataFrame:
    """What each method costs: at the boundaries, as it was timed there, and over the whole run against base.

    Only the first is reliable when other programs ran on the machine.
    """
    base = setting.group("base")
    rows = []
    for group in setting.groups:
        at_boundaries = [total(run, "method/seconds") for run in group.runs]
        whole = [run.final("seconds") if "seconds" in run.history else np.nan for run in group.runs]
        rows.append(
            {
                "method": label(group),
                "n": len(group.runs),
                "at boundaries (s)": estimate(at_boundaries),
                "of the run (%)": estimate(100 * np.divide(at_boundaries, whole)),
                "run (s)": estimate(whole),
                "run vs base (%)": slowdown(group, base) if base else None,
            }
        )
    return pd.DataFrame(rows)


def total(run: Run, key: str) -> float:
    """Sum of a column over rows and boundaries; 0 if the run logged none."""
    return float(sum(part[key].sum() for part in (run.history, run.boundaries) if key in part))


def slowdown(group: Group, base: Group) -> Estimate | None:
    """How much longer the runs took than base's of the same seeds, in per cent."""
    theirs = {run.seed: run.final("seconds") for run in base.runs if "seconds" in run.history}
    ratios = [
        100 * (run.final("seconds") / theirs[run.seed] - 1)
        for run in group.runs
        if group is not base and "seconds" in run.history and theirs.get(run.seed)
    ]
    return estimate(ratios) if ratios else None


def ranks(settings: Sequence[Setting]) -> pd.DataFrame:
    """Mean rank of each method's mean final value over settings; 1 is best, ties share.

    A setting ranks the methods that were run in it, so methods are comparable where they were run in the same settings.
    """
    places: dict[str, list[float]] = {}
    for setting in settings:
        means = [estimate(list(finals(group).values())).mean for group in setting.groups]
        order = pd.Series(means).rank(ascending=not METRICS[setting.metric][1], method="average")
        for group, place in zip(setting.groups, order, strict=True):
            places.setdefault(label(group), []).append(float(place))
    rows = [{"method": m, "settings": len(p), "mean rank": float(np.nanmean(p))} for m, p in places.items()]
    return pd.DataFrame(rows).sort_values("mean rank", kind="stable", ignore_index=True)


def convergence(settings: Sequence[Setting]) -> pd.DataFrame:
    """The paper's table 10, from runs: how FIRE computed -> DfI and SFE at boundaries, and the final value.

    With the rows of base and full reset, which are what it can be measured by.
    """
    rows = []
    for setting in settings:
        logged = [group for group in setting.groups if "boundary/dfi_after" in group.runs[0].boundaries]
        if not any("solver" in options(group) for group in logged):
            continue
        for group in logged:
            if "solver" not in options(group) and group.method not in ("base", "full_reset"):
                continue
            row: dict[str, object] = {"setting": setting.name, "method": style.name(group.method)}
            row |= {key: options(group).get(key) for key in ("solver", "iterations", "norm_init", "layout")}
            row["n"] = len(group.runs)
            for text, key in (("DfI before", "dfi_before"), ("DfI after", "dfi_after"), ("SFE", "sfe")):
                column = f"boundary/{key}"
                values = [run.boundaries[column].mean() for run in group.runs if column in run.boundaries]
                row[text] = estimate(values)
            row["final"] = estimate(list(finals(group).values()))
            rows.append(row)
    return pd.DataFrame(rows).dropna(axis="columns", how="all") if rows else pd.DataFrame()


def options(group: Group) -> dict[str, object]:
    """The method's options, as all runs of the group have them."""
    method = group.runs[0].config["method"]
    return method if isinstance(method, dict) else {}
