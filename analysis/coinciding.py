"""Lines of a figure that lie on each other, which stay visible all: they take turns in dashes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path

from analysis.arrays import Floats

NEAR = 0.6  # points of 1/72 inch, half of a line's width: what lies closer cannot be told apart
DASH = 4.0  # points


def separate(figure: Figure) -> None:
    """Makes lines visible that lie on each other: they take turns in dashes, and their dots become sectors of one.

    To be called when all is drawn and the figure has its size, as what coincides depends on both.
    """
    figure.draw_without_rendering()  # the layout, so that positions are known
    for axes in figure.axes:
        lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        points = [axes.transData.transform(vertices(line)) * 72 / figure.dpi for line in lines]
        share_segments(axes, lines, points)
        share_dots(axes, lines, points)


def share_segments(axes: Axes, lines: Sequence[Line2D], points: Sequence[Floats]) -> None:
    """Draws dashes in turn along the segments at which lines coincide.

    Args:
        axes: of the lines.
        lines: to compare.
        points: their vertices, shape (n, 2), in points of 1/72 inch.
    """
    segments: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # (left, right), then heights: line and its vertex
    for number, xy in enumerate(points):
        for i in range(len(xy) - 1):
            if np.isfinite(xy[i : i + 2]).all() and not np.allclose(xy[i], xy[i + 1]):
                segments.setdefault((round(xy[i, 0], 1), round(xy[i + 1, 0], 1)), []).append((number, i))
    stretches: dict[tuple[int, ...], dict[int, list[int]]] = {}  # lines that coincide: of each line its vertices there
    for members in segments.values():
        for together in clusters(members, lambda at: points[at[0]][at[1] : at[1] + 2, 1]):
            if len(together) > 1:
                stretch = stretches.setdefault(tuple(number for number, _ in together), {})
                for number, i in together:
                    stretch.setdefault(number, []).append(i)
    for together_lines, places in stretches.items():
        for turn, number in enumerate(together_lines):
            for first, last in consecutive(places[number]):
                add_dashes(axes, lines[number], points[number], first, last + 1, turn, len(together_lines))


def add_dashes(axes: Axes, line: Line2D, xy: Floats, first: int, last: int, turn: int, lines: int) -> None:
    """Draws a line once more from one vertex to another, in dashes that leave room for those of the other lines.

    Args:
        axes: to draw on.
        line: whose colour is taken.
        xy: its vertices, shape (n, 2), in points.
        first: vertex.
        last: vertex.
        turn: the line's place among those that coincide.
        lines: how many coincide.
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
    """Draws a pie where marks of several lines coincide: a sector for each line, of the area of a mark."""
    dotted = [
        number for number, line in enumerate(lines) if line.get_marker() != "None" and line.get_markevery() is None
    ]
    places: dict[float, list[tuple[int, int]]] = {}
    for number in dotted:
        for i, (x, y) in enumerate(points[number]):
            if np.isfinite(y):
                places.setdefault(round(x, 1), []).append((number, i))
    for members in places.values():
        for together in clusters(members, lambda at: points[at[0]][at[1], 1:]):
            for turn, (number, i) in enumerate(together if len(together) > 1 else ()):
                angles = 90 + 360 * np.array([turn, turn + 1]) / len(together)
                line = lines[number]
                axes.plot(
                    *vertices(line)[i], marker=Path.wedge(*angles), color=line.get_color(), zorder=4,
                    markersize=line.get_markersize() * len(together) ** 0.5, markeredgewidth=0, linestyle="none",
                    label=f"_{line.get_label()}",
                )  # fmt: skip


def vertices(line: Line2D) -> Floats:
    """The vertices of a line in units of its data, shape (n, 2)."""
    return np.asarray(line.get_xydata(), dtype=float)


def clusters(
    members: Sequence[tuple[int, int]], heights_of: Callable[[tuple[int, int]], Floats]
) -> list[list[tuple[int, int]]]:
    """Groups what lies within `NEAR` points of the lowest of its group.

    Args:
        members: numbers of lines and vertices.
        heights_of: of a member, in points; as many for each.
    """
    groups: list[list[tuple[int, int]]] = []
    for member in sorted(members, key=lambda at: tuple(heights_of(at))):
        if groups and np.abs(heights_of(groups[-1][0]) - heights_of(member)).max() <= NEAR:
            groups[-1].append(member)
        else:
            groups.append([member])
    return [sorted(group) for group in groups]


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last of each run of consecutive numbers."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(part[0]), int(part[-1])) for part in np.split(np.array(numbers), cuts)]
