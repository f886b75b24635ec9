"""Keep coinciding lines of a figure visible: they are drawn in alternating dashes, and their dots as pies."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path

from analysis.arrays import Floats

NEAR = 0.6  # points of 1/72 inch, half of a line's width: closer lines cannot be told apart
DASH = 4.0  # points


def separate(figure: Figure) -> None:
    """Draw coinciding lines in alternating dashes, and their coinciding dots as sectors of a pie.

    Call it last: which lines coincide depends on everything that is drawn and on the figure's size.
    """
    figure.draw_without_rendering()  # the layout, so that positions are known
    for axes in figure.axes:
        lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        points = [axes.transData.transform(vertices(line)) * 72 / figure.dpi for line in lines]
        share_segments(axes, lines, points)
        share_dots(axes, lines, points)


def share_segments(axes: Axes, lines: Sequence[Line2D], points: Sequence[Floats]) -> None:
    """Draw alternating dashes along the segments at which lines coincide.

    Args:
        axes: the lines' axes.
        lines: the lines to compare.
        points: vertices of each line, shape (n, 2), in points of 1/72 inch.
    """
    # (left end, right end) of a segment on the horizontal axis -> (number of the line, index of its left vertex)
    segments: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for number, xy in enumerate(points):
        for i in range(len(xy) - 1):
            if np.isfinite(xy[i : i + 2]).all() and not np.allclose(xy[i], xy[i + 1]):
                segments.setdefault((round(xy[i, 0], 1), round(xy[i + 1, 0], 1)), []).append((number, i))
    # Numbers of lines that coincide -> number of each line -> indices of the left vertices where they do.
    stretches: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for members in segments.values():
        for coinciding in clusters(members, lambda at: points[at[0]][at[1] : at[1] + 2, 1]):
            if len(coinciding) > 1:
                stretch = stretches.setdefault(tuple(number for number, _ in coinciding), {})
                for number, i in coinciding:
                    stretch.setdefault(number, []).append(i)
    for numbers, indices in stretches.items():
        for turn, number in enumerate(numbers):
            for first, last in consecutive(indices[number]):
                add_dashes(axes, lines[number], points[number], first, last + 1, turn, len(numbers))


def add_dashes(axes: Axes, line: Line2D, xy: Floats, first: int, last: int, turn: int, lines: int) -> None:
    """Draw a part of a line once more, in dashes whose gaps leave room for the dashes of the other lines.

    Args:
        axes: the axes to draw on.
        line: the line; the dashes get its colour.
        xy: the line's vertices, shape (n, 2), in points of 1/72 inch.
        first: index of the part's first vertex.
        last: index of the part's last vertex.
        turn: the line's number among those that coincide, from 0.
        lines: how many lines coincide.
    """
    steps = np.hypot(*np.diff(xy[first : last + 1], axis=0).T)
    dash = min(DASH, max(1.0, steps.sum() / (2 * lines)))  # points; each line has its turn twice where there is room
    width = line.get_linewidth()
    (overlay,) = axes.plot(
        *vertices(line)[first : last + 1].T,
        color=line.get_color(), linewidth=width, zorder=3.5, dash_capstyle="butt", label=f"_{line.get_label()}",
    )  # fmt: skip
    period, start = dash * lines, xy[first, 0]  # the horizontal place: the same for all lines that coincide
    overlay.set_linestyle(((start - turn * dash) % period / width, (dash / width, (period - dash) / width)))


def share_dots(axes: Axes, lines: Sequence[Line2D], points: Sequence[Floats]) -> None:
    """Draw a pie where dots of several lines coincide, with a sector for each line that has the area of its dot."""
    dotted = [
        number for number, line in enumerate(lines) if line.get_marker() != "None" and line.get_markevery() is None
    ]
    places: dict[float, list[tuple[int, int]]] = {}
    for number in dotted:
        for i, (x, y) in enumerate(points[number]):
            if np.isfinite(y):
                places.setdefault(round(x, 1), []).append((number, i))
    for members in places.values():
        for coinciding in clusters(members, lambda at: points[at[0]][at[1], 1:]):
            for turn, (number, i) in enumerate(coinciding if len(coinciding) > 1 else ()):
                angles = 90 + 360 * np.array([turn, turn + 1]) / len(coinciding)
                line = lines[number]
                axes.plot(
                    *vertices(line)[i], marker=Path.wedge(*angles), color=line.get_color(), zorder=4,
                    markersize=line.get_markersize() * len(coinciding) ** 0.5, markeredgewidth=0, linestyle="none",
                    label=f"_{line.get_label()}",
                )  # fmt: skip


def vertices(line: Line2D) -> Floats:
    """Return the vertices of a line in units of its data, shape (n, 2)."""
    return np.asarray(line.get_xydata(), dtype=float)


def clusters(
    members: Sequence[tuple[int, int]], heights_of: Callable[[tuple[int, int]], Floats]
) -> list[list[tuple[int, int]]]:
    """Group vertices or segments by height: a group reaches at most `NEAR` points above its lowest member.

    Args:
        members: (number of the line, index of the vertex) of each.
        heights_of: returns the heights of a member in points of 1/72 inch: one of a vertex, two of a segment.
    """
    groups: list[list[tuple[int, int]]] = []
    for member in sorted(members, key=lambda at: tuple(heights_of(at))):
        if groups and np.abs(heights_of(groups[-1][0]) - heights_of(member)).max() <= NEAR:
            groups[-1].append(member)
        else:
            groups.append([member])
    return [sorted(group) for group in groups]


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each series of consecutive numbers."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(part[0]), int(part[-1])) for part in np.split(np.array(numbers), cuts)]
