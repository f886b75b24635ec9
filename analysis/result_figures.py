"""The figures of the result pages: streams of tasks, all streams at a glance, texts, and agents."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from analysis import style
from analysis.estimates import Estimate, band

LINES = 7  # curves in a figure, the references among them
REFERENCES = ("base", "full_reset", "fire")
LOGARITHMIC = ("dfi", "gradient_norm", "td_fresh", "td_old")


def stream_name(name: str) -> str:
    """A stream, as figures and tables write it, without its data."""
    return style.name(name.rpartition("_")[0])


def lines(order: Sequence[str]) -> list[str]:
    """The methods that a figure shows: those that others are compared with, and the best of the others."""
    references = [method for method in REFERENCES if method in order]
    return [*references, *[method for method in order if method not in references][: LINES - len(references)]]


def size_of(width: str) -> float:
    """In inches, of a page or a column."""
    return style.COLUMN if width == "column" else style.PAGE


def draw_means(axes: Axes, estimates: Iterable[Estimate], methods: Mapping[str, str], palette: style.Palette) -> None:
    """A line a method: a mean with its interval. `methods`: in their order, with their names."""
    for row, (method, estimate) in enumerate(zip(methods, estimates, strict=True)):
        colour = palette.line(method.partition(" (")[0])["color"]
        axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=1.2)
        axes.plot(estimate.mean, row, "o", color=colour, markersize=3)
    axes.set_yticks(range(len(methods)), list(methods.values()))
    axes.grid(axis="y", linewidth=0.3, alpha=0.5)


def draw_tasks(axes: Axes, frame: pd.DataFrame, column: str, called: Mapping[str, str], palette: style.Palette) -> None:
    """Means over seeds by task, a line a method that `called` names; band: standard error."""
    for place, (method, name) in enumerate(called.items()):
        look = palette.line(method.partition(" (")[0], (0, place if " (" in method else 0))
        values = frame[frame["method"] == method].pivot(index="seed", columns="task", values=column)
        low, high = band(values.to_numpy(float))
        axes.plot(values.columns, values.mean(), **look, label=name)
        axes.fill_between(values.columns, low, high, color=look["color"], alpha=0.16, linewidth=0)
    axes.set_xlabel(style.AXES["task"])
    style.number_tasks(axes, frame["task"].max())


def overview(
    panels: Mapping[str, Sequence[Estimate]],
    called: Mapping[str, str],
    words: str,
    width: str,
    top: float | None = None,
) -> Figure:
    """Every method's means beside each other; methods stand in one order in all panels.

    Args:
        panels: by title a mean for each method.
        called: the methods in their order, and their names.
        words: below the figure.
        width: in a column the panels stand two beside each other.
        top: where all axes begin at 0, their end.
    """
    palette = style.Palette(method.partition(" (")[0] for method in called)
    across = min(len(panels), 2 if width == "column" else len(panels))
    down = -(-len(panels) // across)
    size = (size_of(width), down * (0.13 * len(called) + 0.8))
    figure, axes = plt.subplots(down, across, figsize=size, sharey=True, squeeze=False, layout="constrained")
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, estimates) in zip(axes.flat, panels.items(), strict=False):
        draw_means(panel, estimates, called, palette)
        panel.set_title(title, fontsize=7)
        if top is not None:
            panel.set_xlim(0, top if panel.get_xlim()[1] < 2 * top else None)
    axes[0, 0].set_ylim(len(called) - 0.5, -0.5)
    figure.supxlabel(textwrap.fill(words, 70 if width == "column" else 200), fontsize=7)
    return figure


def stream(
    title: str, frame: pd.DataFrame, compared: pd.DataFrame, called: Mapping[str, str], loss: bool, width: str
) -> Figure:
    """Left: the value at the end of each task, of the references and the best; right: all methods' means.

    In a column the second panel stands below the first. Where there is one task, the second stands alone.
    """
    order = list(compared["method"])
    palette = style.Palette(method.partition(" (")[0] for method in order)
    narrow, height = width == "column", max(2.6, 0.15 * len(order) + 0.9)
    text, across = f"{title}, {frame['seed'].nunique()} seeds", "Value, 95 % interval over seeds"
    if frame["task"].nunique() == 1:
        figure, right = plt.subplots(figsize=(size_of(width), height), layout="constrained")
    else:
        shape, total, ratios = ((2, 1), 2.8 + height, [2.8, height]) if narrow else ((1, 2), height, [1.0])
        size = (size_of(width), total)
        figure, (left, right) = plt.subplots(*shape, figsize=size, height_ratios=ratios, layout="constrained")
        draw_tasks(left, frame, "value", {method: called[method] for method in lines(order)}, palette)
        left.set_ylabel("Squared error of a task" if loss else "Accuracy at the end of a task")
        left.set_ylim(0, None if loss else 1.02)
        left.legend(fontsize=6)
        across = "Mean over tasks, 95 % interval over seeds"
        text += f"; {'above' if narrow else 'left'}: references and the best others, band: standard error"
    draw_means(right, compared["all tasks"], {method: called[method] for method in order}, palette)
    right.set_ylim(len(order) - 0.5, -0.5)
    right.set_xlim(0, None if loss else 1.02)
    right.set_xlabel(across)
    figure.suptitle(textwrap.fill(text, 70 if narrow else 200), x=0.01, ha="left", fontsize=7)
    return figure


def agents(runs: pd.DataFrame, called: Mapping[str, str], known: Mapping[str, str], width: str) -> Figure:
    """Return and the state of the networks over the tasks: means over seeds, a line a method, band: standard error.

    Args:
        runs: a row for each task of a run.
        called: the methods, the best first, and their names.
        known: columns of the networks' state, and their names.
        width: up to three panels stand in a row of a page, one in a column.
    """
    columns = {"return": "Return, last quarter", **known}
    across = min(1 if width == "column" else 3, len(columns))
    down = -(-len(columns) // across)
    size = (size_of(width), 1.9 * down + 0.3)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    palette, shown = style.Palette(called), {method: called[method] for method in lines([*called])}
    for axis, (column, words) in zip(axes.flat, columns.items(), strict=False):
        draw_tasks(axis, runs.assign(task=runs["task"] + 1), column, shown, palette)
        axis.set_title(words)
        if column in LOGARITHMIC:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
        elif column == "return":
            axis.set_ylim(0)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    names = axes.flat[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=min(len(names[0]), 2 * across + 2), fontsize=6)
    return figure
