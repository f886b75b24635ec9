"""The tables of docs/results/agents.md, from what `scripts.agents_runs` keeps.

    python -m scripts.agents_tables csv=docs/results/agents

A run's score is the mean of its tasks' returns over the last third of the tasks; seeds are the unit of all intervals.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from analysis.arrays import Floats
from analysis.estimates import Estimate, mean
from analysis.formats import as_markdown
from analysis.rl import iqm, probability_of_improvement, stratified

mpl.use("Agg")
import matplotlib.pyplot as plt

STATE = {
    "dormant_ratio": "dormant units",
    "effective_rank": "effective rank",
    "dfi": "DfI",
    "gradient_norm": "gradient norm",
    "td_fresh": "TD error, fresh",
    "td_old": "TD error, old",
}


def scores(runs: pd.DataFrame, method: str) -> Floats:
    """Of each seed the mean return over the last third of the tasks."""
    here = runs[(runs["method"] == method) & (runs["task"] >= last_third(runs))]
    return here.groupby("seed")["return"].mean().to_numpy(np.float64)


def last_third(runs: pd.DataFrame) -> int:
    """The first task of the last third."""
    tasks = int(runs["task"].max()) + 1
    return tasks - max(1, tasks // 3)


def of_task(runs: pd.DataFrame, method: str, task: int) -> Estimate:
    """The mean return of one task."""
    here = runs[(runs["method"] == method) & (runs["task"] == task)]
    return mean(here["return"].tolist())


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each method, the best first."""
    found = {str(method): scores(runs, str(method)) for method in dict.fromkeys(runs["method"])}
    order = sorted(found, key=lambda method: -float(found[method].mean()))
    rows = []
    for method in order:
        row: dict[str, object] = {
            "method": method,
            "n": len(found[method]),
            "first task": of_task(runs, method, 0),
            "last task": of_task(runs, method, int(runs["task"].max())),
            "last third": mean(found[method].tolist()),
            "IQM": stratified(iqm, [found[method]]),
        }
        for other in ("base", "full_reset"):
            if other in found:
                same = method == other
                row[f"P(better than {other})"] = (
                    None if same else stratified(probability_of_improvement, [found[method]], [found[other]])
                )
        rows.append(row)
    return pd.DataFrame(rows)


def states(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each method the networks as the first and as the last task ended."""
    rows = []
    last = int(runs["task"].max())
    for method in dict.fromkeys(runs["method"]):
        row: dict[str, object] = {"method": method}
        for column, words in known(runs).items():
            for when, task in (("first", 0), ("last", last)):
                here = runs[(runs["method"] == method) & (runs["task"] == task)][column].dropna()
                row[f"{words}, {when}"] = mean(here.tolist()) if len(here) else None
        rows.append(row)
    return pd.DataFrame(rows)


def known(runs: pd.DataFrame) -> dict[str, str]:
    """The columns of `STATE` that a table has numbers in."""
    return {column: words for column, words in STATE.items() if column in runs and runs[column].notna().any()}


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Return and the state of the networks over the tasks, means over seeds, a line a method."""
    columns = {"return": "return, last quarter", **known(runs)}
    figure, axes = plt.subplots(1, len(columns), figsize=(2.4 * len(columns), 2.6), squeeze=False, layout="constrained")
    for axis, (column, words) in zip(axes[0], columns.items(), strict=True):
        for method, rows in runs.groupby("method", sort=False):
            means = rows.groupby("task")[column].mean()
            axis.plot(means.index + 1, means.to_numpy(), label=str(method), linewidth=1)
        axis.set(title=words, xlabel="task")
        if column in ("dfi", "gradient_norm", "td_fresh", "td_old"):
            axis.set_yscale("log")
    axes[0][0].legend(fontsize=6)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(csv: Path) -> None:
    """Print the tables, and draw a figure beside each csv file."""
    for path in sorted(csv.glob("continual_*.csv")):
        runs = pd.read_csv(path)
        print(f"## {path.stem}\n\n{as_markdown(table(runs))}\n")
        if known(runs):
            print(f"{as_markdown(states(runs))}\n")
            draw(runs, path.with_suffix(".png"))


if __name__ == "__main__":
    main(Path(dict(argument.split("=", 1) for argument in sys.argv[1:])["csv"]))
