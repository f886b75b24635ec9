"""The figures of the result pages: streams of tasks, all streams at a glance, texts, and agents."""

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import cos, isfinite, pi, sin
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation

from analysis import style
from analysis.estimates import Estimate, band, mean
from analysis.summary import by_seed

LINES = 7  # curves in a figure, the references among them
REFERENCES = ("base", "full_reset", "fire")
NUMBERED = 24  # points of a plane that have numbers
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


def overview(frames: Mapping[str, tuple[pd.DataFrame, bool]], called: Mapping[str, str], width: str) -> Figure:
    """A panel for each stream with every method's mean over tasks; methods stand in one order in all.

    Args:
        frames: by the stream's name its rows, and whether they are losses.
        called: the methods in their order, and their names.
        width: in a column the panels stand two beside each other.
    """
    palette = style.Palette(called)
    across = 2 if width == "column" else len(frames)
    down = -(-len(frames) // across)
    size = (size_of(width), down * (0.13 * len(called) + 0.8))
    figure, axes = plt.subplots(down, across, figsize=size, sharey=True, squeeze=False)
    for panel in axes.flat[len(frames) :]:
        panel.set_visible(False)
    for panel, (title, (frame, loss)) in zip(axes.flat, frames.items(), strict=False):
        values = [by_seed(frame[frame["method"] == method]).values() for method in called]
        draw_means(panel, [mean([*of_seeds]) for of_seeds in values], called, palette)
        panel.set_xlim(0, None if loss else 1.02)
        panel.set_title(title, fontsize=7)
        panel.grid(axis="y", linewidth=0.3, alpha=0.5)
    axes[0, 0].invert_yaxis()
    figure.supxlabel("Mean over tasks, 95 % interval over seeds; methods in the order of their mean rank", fontsize=7)
    figure.tight_layout()
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
        figure, right = plt.subplots(figsize=(style.COLUMN if narrow else 0.6 * style.PAGE, height))
    else:
        shape, total, ratios = ((2, 1), 2.8 + height, [2.8, height]) if narrow else ((1, 2), height, [1.0])
        figure, (left, right) = plt.subplots(*shape, figsize=(size_of(width), total), height_ratios=ratios)
        draw_tasks(left, frame, {method: called[method] for method in lines(order)}, palette, loss)
        across = "Mean over tasks, 95 % interval over seeds"
        text += f"; {'above' if narrow else 'left'}: references and the best others, band: standard error"
    draw_means(right, compared["all tasks"], {method: called[method] for method in order}, palette)
    right.invert_yaxis()
    right.set_xlim(0, None if loss else 1.02)
    right.set_xlabel(across)
    figure.suptitle(textwrap.fill(text, 70 if narrow else 200), x=0.01, ha="left", fontsize=7)
    figure.tight_layout()
    return figure


def draw_tasks(left: Axes, frame: pd.DataFrame, called: Mapping[str, str], palette: style.Palette, loss: bool) -> None:
    """The value at the end of each task, of the methods that `called` names."""
    for place, (method, name) in enumerate(called.items()):
        look = palette.line(method.partition(" (")[0], place if " (" in method else 0)
        values = frame[frame["method"] == method].pivot(index="seed", columns="task", values="value")
        low, high = band(values.to_numpy(float), "sem")
        left.plot(values.columns, values.mean(), **look, label=name)
        left.fill_between(values.columns, low, high, color=look["color"], alpha=0.16, linewidth=0)
    left.set_xlabel(style.AXES["task"])
    left.set_ylabel("Squared error of a task" if loss else "Accuracy at the end of a task")
    left.set_ylim(0, None if loss else 1.02)
    left.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    scale = left.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]
    below = left.transAxes + ScaledTranslation(0, -0.38, scale)  # inches, below the axis' label
    left.legend(loc="upper center", bbox_to_anchor=(0.45, 0), bbox_transform=below, ncols=3, fontsize=6)


def agents(runs: pd.DataFrame, order: Sequence[str], known: Mapping[str, str], width: str) -> Figure:
    """Return and the state of the networks over the tasks: means over seeds, a line a method, band: standard error.

    Args:
        runs: a row for each task of a run.
        order: the methods, the best first.
        known: columns of the networks' state, and their names.
        width: up to three panels stand in a row of a page, one in a column.
    """
    columns = {"return": "Return, last quarter", **known}
    across = min(1 if width == "column" else 3, len(columns))
    down = -(-len(columns) // across)
    size = (size_of(width), 1.9 * down + 0.3)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    palette = style.Palette(order)
    for axis, (column, words) in zip(axes.flat, columns.items(), strict=False):
        for method in lines(order):
            tasks, look = runs[runs["method"] == method].groupby("task")[column], palette.line(method)
            means, errors = tasks.mean().to_numpy(), tasks.sem().to_numpy()
            at = tasks.mean().index + 1
            axis.plot(at, means, label=style.name(method), **look)
            axis.fill_between(at, means - errors, means + errors, color=look["color"], alpha=0.15, linewidth=0)
        axis.set(title=words, xlabel=style.AXES["task"])
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if column in LOGARITHMIC:
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


def plane(name: str, compared: pd.DataFrame, width: str) -> Figure:
    """Plasticity against stability of texts: a point a method with 95 % intervals, numbered as in its list.

    In a column the second panel stands below the first.
    """
    stabilities = [
        ("Loss added at a boundary,\nearlier tasks", "lost"),
        ("Loss at the end,\nearlier tasks", "earlier at the end"),
    ]
    narrow = width == "column"
    shape, height = ((2, 1), 6.4) if narrow else ((1, 2), 3.2)
    figure, axes = plt.subplots(*shape, figsize=(size_of(width), height))
    shown, others = split_rows(compared)
    for axis, (label, column) in zip(axes, stabilities, strict=True):
        for x, y in zip(others["last quarter"], others[column], strict=True):
            axis.plot(x.mean, y.mean, "o", color="#CCCCCC", markersize=2)
        for method, x, y in zip(shown["method"], shown["last quarter"], shown[column], strict=True):
            axis.plot([x.low, x.high], [y.mean, y.mean], color="#999999", linewidth=0.8)
            axis.plot([x.mean, x.mean], [y.low, y.high], color="#999999", linewidth=0.8)
            axis.plot(x.mean, y.mean, "o", color=style.COLOURS.get(method, style.COLOURS["fire"]), markersize=2.5)
        axis.set_xlabel("Loss on new tasks, last quarter (plasticity: left is better)", fontsize=6.5)
        axis.set_ylabel(f"{label} (stability: low is better)", fontsize=6.5)
    listed = "   ".join(f"{number} {method}" for number, method in enumerate(shown["method"], 1))
    if len(others):
        listed += f"   grey: {len(others)} more, in the table"
    words = name.replace("_", " ").capitalize()
    figure.suptitle(f"{words}: {listed}", x=0.01, ha="left", fontsize=5.5, wrap=True)
    rows = len(listed) // (75 if narrow else 170)
    figure.tight_layout(rect=(0, 0, 1, 0.98 - (0.008 if narrow else 0.03) * rows))
    for axis, (_, column) in zip(axes, stabilities, strict=True):
        number_points(axis, [(x.mean, y.mean) for x, y in zip(shown["last quarter"], shown[column], strict=True)])
    return figure


def split_rows(compared: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows that have room for a number in a figure, those that combine least (`a` before `a-b`), and the others."""
    parts = compared["method"].str.count("-").sort_values(kind="stable")
    first = compared.index.isin(parts.index[:NUMBERED])
    return compared[first], compared[~first]


def number_points(axis: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Write 1, 2, ... beside the points, each as near as there is room; a line leads to one that is not beside its own.

    Args:
        axis: with its final size and limits.
        points: in data coordinates.
    """
    pixels = axis.figure.dpi / 72  # of a point of text
    places = [tuple(axis.transData.transform(point) / pixels) for point in points if all(map(isfinite, point))]
    taken = list(places)
    for number, point in enumerate(points, 1):
        if not all(map(isfinite, point)):
            continue
        x, y = axis.transData.transform(point) / pixels
        wide = 3.4 * len(str(number))
        for distance, eighth in itertools.product((4.5, 9, 13, 18, 23, 28), range(8)):
            turn = (1 + eighth) * pi / 4
            dx, dy = distance * cos(turn), distance * sin(turn)
            if all(abs(x + dx - a) > wide + 0.5 or abs(y + dy - b) > 5 for a, b in taken if (a, b) != (x, y)):
                break
        taken.append((x + dx, y + dy))
        lead: dict[str, Any] = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1.5}
        axis.annotate(
            str(number), point, (dx, dy), textcoords="offset points", fontsize=5.5, ha="center", va="center",
            arrowprops=lead if distance > 4.5 else None,
        )  # fmt: skip
