"""Learning curves on axes, and figures on disk."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis import style
from analysis.curves import Curve, boundaries, curve, firings
from analysis.runs import Group, Setting

FORMATS = ("png", "pdf", "svg")
GREY = "#777777"
MOST = 4  # times the height that 92 % of the points need: where all points need more, the axis is cut


def draw(
    axes: Axes,
    setting: Setting,
    palette: style.Palette,
    band: str = "sem",
    words: tuple[str, str] | None = None,
    last_phase: bool = False,
) -> list[tuple[Group, Curve]]:
    """Draws every method of a setting: mean line, band over seeds, phase boundaries, firings of the first seed.

    Args:
        axes: to draw on.
        setting: to draw.
        palette: colours.
        band: see `estimates.band`.
        words: written left and right of the boundary, if there is just one.
        last_phase: draw the last phase alone, from 0.

    Returns:
        The groups with their curves, for labels and legends.
    """
    drawn = []
    for group in setting.groups:
        c = curve(group, setting.metric, band, last_phase)
        if not len(c.x):
            continue
        look = palette.line(group.method, group.rank)
        few = len(c.x) == 1 or (group.runs[0].is_stream and len(c.x) <= 30)
        dot: dict[str, Any] = {"marker": "o", "markersize": 3} if few else {}
        axes.plot(c.x, c.mean, **dot | look)
        if c.n.max() > 1:
            axes.fill_between(c.x, c.low, c.high, color=look["color"], alpha=0.16, linewidth=0, zorder=1.5)
        drawn.append((group, c))
    if not last_phase:
        mark_boundaries(axes, boundaries([run for group in setting.groups for run in group.runs]), words)
        for row, group in enumerate(with_firings(setting)):
            x = firings(group.runs[0])
            look = palette.line(group.method, group.rank)
            height = np.full(len(x), 0.015 + 0.03 * row)  # of the axes: a line of ticks for each
            axes.plot(x, height, "|", color=look["color"], markersize=4, transform=axes.get_xaxis_transform())
    limits(axes, drawn)
    axes.set_xlabel(style.AXES[setting.x_unit])
    axes.set_ylabel(setting.y_label)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if axes.get_xlim()[1] >= 1e4:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return drawn


def with_firings(setting: Setting) -> list[Group]:
    """The groups whose first seed's trigger fired."""
    return [group for group in setting.groups if len(firings(group.runs[0]))]


def marks(setting: Setting) -> str:
    """What the marks of `draw` are, for a caption."""
    lines = "Vertical line: phase boundary." if has_boundary(setting) else ""
    ticks = "Ticks below: where the trigger of the first seed fired." if with_firings(setting) else ""
    return f"{lines} {ticks}".strip()


def mark_boundaries(axes: Axes, where: list[float], words: tuple[str, str] | None) -> None:
    for x in where:
        axes.axvline(x, color="#A0A0A0", linewidth=0.8, zorder=1)
    if words and len(where) == 1:
        for word, side, align in zip(words, (-3, 3), ("right", "left"), strict=True):
            axes.annotate(
                word,
                (where[0], 1),
                (side, 2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha=align,
                va="bottom",
                color=GREY,
                fontsize=6.5,
            )


def limits(axes: Axes, drawn: Sequence[tuple[Group, Curve]]) -> None:
    """Limits that show everything; or, where a few points would take most of the height, the words that they cut."""
    if not drawn:
        return
    x = np.concatenate([c.x for _, c in drawn])
    y = np.concatenate([edge[np.isfinite(edge)] for _, c in drawn for edge in (c.mean, c.low, c.high)])
    ends = [v for _, c in drawn for v in (c.low[-1], c.high[-1], c.mean[-1]) if np.isfinite(v)]
    lowest, highest = min([*ends, *y]), max([*ends, *y])
    low, high = min([*ends, np.quantile(y, 0.04)]), max([*ends, np.quantile(y, 0.96)])
    if highest - lowest <= MOST * (high - low):
        low, high = lowest, highest
    room = 0.04 * (high - low) or 0.01
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(0, (x.max() or 1) + 0.5 * drawn[0][0].runs[0].is_stream)
    for beyond, edge, at in ((lowest < low - room, lowest, 0), (highest > high + room, highest, 1)):
        if beyond:
            axes.annotate(
                f"axis cut: values {'up' if at else 'down'} to {edge:.3g}",
                (0, at),
                (3, -3 if at else 3),
                xycoords="axes fraction",
                textcoords="offset points",
                va="top" if at else "bottom",
                color=GREY,
                fontsize=6,
            )


def label_ends(axes: Axes, drawn: Sequence[tuple[Group, Curve]], palette: style.Palette, n: bool = False) -> None:
    """Writes each method's name at the end of its line, moved apart where lines end close together.

    Args:
        axes: with its limits set.
        drawn: what `draw` returned.
        palette: colours.
        n: whether to write the number of seeds too.
    """
    ends = sorted(((end_of(c), group) for group, c in drawn), key=lambda end: end[0])
    size = 7
    height = axes.get_window_extent().height * 72 / axes.figure.dpi  # points
    low, high = axes.get_ylim()
    wanted = [(y - low) / (high - low) * height for y, _ in ends]
    for (y, group), at in zip(ends, spread(wanted, 1.25 * size, height), strict=True):
        seeds = f" (n={len(group.runs)})" if n else ""
        text = textwrap.fill(style.name(group.method) + detail(group) + seeds, 34)
        right = axes.get_xlim()[1]
        axes.annotate(
            text,
            (right, y),
            (9, at - (y - low) / (high - low) * height),
            textcoords="offset points",
            color=palette.colours[group.method],
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": palette.colours[group.method],
                "lw": 0.5,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def detail(group: Group) -> str:
    return f" ({group.detail})" if group.detail else ""


def end_of(c: Curve) -> float:
    return float(c.mean[np.isfinite(c.mean)][-1])


def spread(wanted: Sequence[float], gap: float, height: float) -> list[float]:
    """Sorted positions, moved as little as possible until they are `gap` apart, in [0, height] if they fit."""
    at: list[float] = []
    blocks: list[list[float]] = []  # [sum of (wanted - offset), count]: neighbours that touch move together
    for i, want in enumerate(wanted):
        blocks.append([want - i * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    for total, count in blocks:
        at += [total / count + (len(at) + j) * gap for j in range(int(count))]
    shift = min(0.0, height - at[-1]) if at else 0.0
    shift = max(shift, -at[0]) if at and shift < 0 else shift
    return [a + shift for a in at]


def seeds_text(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {n} seed{'s' if counts[-1] > 1 else ''}"


def caption(groups: Sequence[Group], band: str, more: str = "") -> str:
    """What the lines and bands are, and how many seeds."""
    many = max(len(group.runs) for group in groups) > 1
    text = f"Mean over {seeds_text(groups)}; band: {style.BANDS[band]}." if many else f"{seeds_text(groups)}, no band."
    return f"{text} {more}".strip()


def save(figure: Figure, path: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Writes a figure as PNG, PDF and SVG, or some of these, without a date in it, and closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    formats = formats or FORMATS
    dateless: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in formats]
    for target, suffix in zip(paths, formats, strict=True):
        figure.savefig(target, metadata=dateless[suffix])
    plt.close(figure)
    return paths


def setting_figure(setting: Setting, palette: style.Palette, band: str = "sem", width: str | None = None) -> Figure:
    """One setting alone, lines labelled at their ends; with a second panel where the ends are too close.

    Args:
        setting: what to draw.
        palette: colours.
        band: see `estimates.band`.
        width: "column" or "page"; None takes a page if a second panel is needed. A column has one panel.
    """
    figure, axes = plt.subplots()
    drawn = draw(axes, setting, palette, band, words=("phase 0", "phase 1"))
    close_up = width != "column" and has_boundary(setting) and ends_are_close(axes, drawn)
    page = width == "page" or close_up
    chars = 140 if page else 66
    figure.set_size_inches(*((style.PAGE, 2.6) if page else (style.COLUMN, 2.35)))
    figure.subplots_adjust(left=0.065 if page else 0.13, right=0.86 if page else 0.74, top=0.85, bottom=0.22)
    labelled = axes
    if close_up:
        axes.set_position((0.065, 0.22, 0.36, 0.63))
        labelled = figure.add_axes((0.50, 0.22, 0.36, 0.63))
        draw(labelled, setting, palette, band)
        enlarge(axes, labelled, drawn, boundaries([run for group in setting.groups for run in group.runs])[-1])
    label_ends(labelled, drawn, palette, n=len({len(group.runs) for group in setting.groups}) > 1)
    axes.set_title(title(setting, chars - 16), pad=14 if has_boundary(setting) else 6)
    below = caption(setting.groups, band, marks(setting))
    if close_up:
        below += " Right: the frame on the left, enlarged."
    axes.annotate(
        textwrap.fill(below, chars),
        (0, 0),
        (-18, -28),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        fontsize=6.2,
        color=GREY,
    )
    return figure


def ends_are_close(axes: Axes, drawn: Sequence[tuple[Group, Curve]]) -> bool:
    """Whether the lines end within a quarter of the height."""
    ends = [end_of(c) for _, c in drawn]
    low, high = axes.get_ylim()
    return len(ends) > 1 and max(ends) - min(ends) < 0.25 * (high - low)


def enlarge(whole: Axes, part: Axes, drawn: Sequence[tuple[Group, Curve]], boundary: float) -> None:
    """Limits `part` to the last phase without its first fifth of heights, and frames that in `whole`."""
    end = whole.get_xlim()[1]
    late = [c.x > boundary + 0.2 * (end - boundary) for _, c in drawn]
    edges = [edge[at] for (_, c), at in zip(drawn, late, strict=True) for edge in (c.low, c.high, c.mean)]
    values = np.concatenate([edge[np.isfinite(edge)] for edge in edges])
    room = 0.05 * np.ptp(values) or 0.01
    part.set_xlim(boundary, end)
    part.set_ylim(values.min() - room, values.max() + room)
    part.set_ylabel("")
    frame = (boundary, values.min() - room, end - boundary, np.ptp(values) + 2 * room)
    whole.indicate_inset(frame, edgecolor=GREY, alpha=0.8, linewidth=0.7)


def has_boundary(setting: Setting) -> bool:
    return bool(boundaries([run for group in setting.groups for run in group.runs]))


def title(setting: Setting, width: int = 60) -> str:
    head = ", ".join(style.name(part) for part in (setting.benchmark, setting.dataset) if part)
    extra = " · ".join(part for part in (style.name(setting.model), setting.detail) if part)
    return textwrap.fill(f"{head} · {extra}" if extra else head, width)
