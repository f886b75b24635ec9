"""The tables of docs/results/agents.md, from what `scripts.agents_runs` keeps.

    python -m scripts.agents_tables csv=docs/results/agents
    python -m scripts.agents_tables csv=docs/results/agents figures=paper width=column   the figures for a paper

Text between `<!-- table: name -->` and `<!-- end -->` in agents.md, beside the folder, is replaced: of each csv its
table (`continual_cartpole`), the networks (`state ...`) and what its search chose (`chosen ...`); of a sequence of
games also each task's returns (`tasks ...`, `evaluations ...`), as games count in points of their own. A run's score
is the mean of its tasks' returns over the last third of the tasks; seeds are the unit of all intervals. The primary
metric is the return of training episodes, `return`: order, IQM and probabilities are of it. Greedy evaluations stand
beside it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from analysis import plotting, style
from analysis.arrays import Floats
from analysis.estimates import Estimate, mean
from analysis.formats import as_markdown
from analysis.make_plasticity import LINES, SEARCH, chosen, filled
from analysis.rl import iqm, probability_of_improvement, stratified

STATE = {
    "dormant_ratio": "dormant units",
    "effective_rank": "effective rank",
    "dfi": "DfI",
    "gradient_norm": "gradient norm",
    "td_fresh": "TD error, fresh",
    "td_old": "TD error, old",
}

GAMES = {"continual_minatar": ("Space Invaders", "Asterix", "Seaquest")}  # in turn


def scores(runs: pd.DataFrame, method: str, metric: str = "return") -> Floats:
    """Of each seed the mean return over the last third of the tasks."""
    here = runs[(runs["method"] == method) & (runs["task"] >= last_third(runs))]
    return here.groupby("seed")[metric].mean().to_numpy(np.float64)


def last_third(runs: pd.DataFrame) -> int:
    """The first task of the last third."""
    tasks = int(runs["task"].max()) + 1
    return tasks - max(1, tasks // 3)


def of_task(runs: pd.DataFrame, method: str, task: int, metric: str = "return") -> Estimate:
    """The mean return of one task."""
    here = runs[(runs["method"] == method) & (runs["task"] == task)]
    return mean(here[metric].tolist())


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
        row["evaluation, last third"] = mean(scores(runs, method, "evaluation").tolist())
        rows.append(row)
    return pd.DataFrame(rows)


def tasks_of(runs: pd.DataFrame, games: Sequence[str], metric: str = "return") -> pd.DataFrame:
    """A return of each method in each task, the method of the best training return first; games come round again."""
    rows = []
    for method in table(runs)["method"]:
        row: dict[str, object] = {"method": method}
        for task in range(int(runs["task"].max()) + 1):
            row[f"{task + 1}: {games[task % len(games)]}"] = of_task(runs, str(method), task, metric)
        rows.append(row)
    return pd.DataFrame(rows)


def states(runs: pd.DataFrame) -> pd.DataFrame:
    """The networks of each method as the last task ends, the best first; those of base as the first one ends, too."""
    last, order = int(runs["task"].max()), table(runs)["method"]
    asked = [("base", 0)] * ("base" in set(order)) + [(str(method), last) for method in order]
    rows = []
    for method, task in asked:
        here = runs[(runs["method"] == method) & (runs["task"] == task)]
        row: dict[str, object] = {"method": method, "task": task + 1}
        for column, words in known(runs).items():
            numbers = here[column].dropna().tolist()
            row[words] = mean(numbers) if numbers else None
        rows.append(row)
    return pd.DataFrame(rows)


def known(runs: pd.DataFrame) -> dict[str, str]:
    """The columns of `STATE` that a table has numbers in."""
    return {column: words for column, words in STATE.items() if column in runs and runs[column].notna().any()}


def lines(runs: pd.DataFrame) -> list[str]:
    """The methods that a figure shows: those that others are compared with, and the best of the others."""
    order = [str(method) for method in table(runs)["method"]]
    asked = [method for method in ("base", "full_reset", "fire") if method in order]
    return [*asked, *[method for method in order if method not in asked][: LINES - len(asked)]]


def draw(runs: pd.DataFrame, width: str = "page") -> Figure:
    """Return and the state of the networks over the tasks: means over seeds, a line a method, band: standard error.

    Args:
        runs: a row for each task of a run.
        width: "page" or "column" of a paper: up to three panels in a row, or one.
    """
    columns = {"return": "Return, last quarter", **known(runs)}
    across = min(1 if width == "column" else 3, len(columns))
    down = -(-len(columns) // across)
    size = (style.COLUMN if width == "column" else style.PAGE, 1.9 * down + 0.3)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    palette = style.Palette(map(str, runs["method"]))
    drawn = lines(runs)
    for axis, (column, words) in zip(axes.flat, columns.items(), strict=False):
        for method in drawn:
            rows = runs[runs["method"] == method]
            tasks, look = rows.groupby("task")[column], palette.line(method)
            means, errors = tasks.mean().to_numpy(), tasks.sem().to_numpy()
            at = tasks.mean().index + 1
            axis.plot(at, means, label=style.name(method), **look)
            axis.fill_between(at, means - errors, means + errors, color=look["color"], alpha=0.15, linewidth=0)
        axis.set(title=words, xlabel=style.AXES["task"])
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if column in ("dfi", "gradient_norm", "td_fresh", "td_old"):
            logarithmic(axis)
        elif column == "return":
            axis.set_ylim(0)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    names = axes.flat[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=min(len(names[0]), 2 * across + 2), fontsize=6)
    return figure


def logarithmic(axis: Axes) -> None:
    """A logarithmic vertical axis with plain numbers: 20, 100k, 1M."""
    low, high = axis.get_ylim()
    axis.set_yscale("log")
    few = high > 30 * max(low, 1e-9)
    axis.yaxis.set_major_locator(LogLocator(subs=(1,) if few else (1, 2, 3, 5)))
    axis.yaxis.set_major_formatter(EngFormatter(sep="") if high >= 1000 else StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Methods as they are written in figures."""
    return frame.assign(method=[style.name(method) for method in frame["method"]])


def make_tables(csv: Path) -> dict[str, str]:
    """Markdown of each table of the page, by its name."""
    tables: dict[str, str] = {}
    for path in sorted(csv.glob("*.csv")):
        rows = pd.read_csv(path)
        if path.stem.startswith(SEARCH):
            tables[f"chosen {path.stem.removeprefix(SEARCH)}"] = as_markdown(chosen(rows, more=True))
            continue
        tables[path.stem] = as_markdown(named(table(rows)))
        if path.stem in GAMES:
            for name, metric in (("tasks", "return"), ("evaluations", "evaluation")):
                tables[f"{name} {path.stem}"] = as_markdown(named(tasks_of(rows, GAMES[path.stem], metric)))
        if known(rows):
            tables[f"state {path.stem}"] = as_markdown(named(states(rows)))
    return tables


def main(csv: Path, figures: Path | None = None, width: str = "page") -> None:
    """Fill in the tables of the page, and draw a figure beside each csv file, or in all formats into `figures`."""
    style.use()
    for path in sorted(path for path in csv.glob("*.csv") if not path.stem.startswith(SEARCH)):
        figure = draw(pd.read_csv(path), width)
        plotting.save(figure, (figures or csv) / path.stem, plotting.FORMATS if figures else ["png"])
        print(f"made {path.stem}")
    page = csv.with_suffix(".md")
    if page.exists():
        page.write_text(filled(page.read_text(encoding="utf-8"), make_tables(csv)), encoding="utf-8")
        print("now python scripts/fill_numbers.py, which brings the numbers in the text up to the tables")


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(Path(given["csv"]), Path(given["figures"]) if "figures" in given else None, given.get("width", "page"))
