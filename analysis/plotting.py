"""Learning curves on axes, and figures on disk."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis import style
from analysis.curves import Curve, boundaries, curve
from analysis.runs import Group, Setting

FORMATS = ("png", "pdf")
GREY = "#777777"
Drawn = list[tuple[Group, Curve]]


def draw(axes: Axes, setting: Setting, palette: style.Palette, last_phase: bool = False) -> Drawn:
    """Draws every method of a setting: mean line, band over seeds, phase boundaries.

    Args:
        axes: to draw on.
        setting: to draw.
        palette: colours.
        last_phase: draw the last phase alone, from 0.

    Returns:
        The groups with their curves, for legends.
    """
    drawn = []
    for group in setting.groups:
        c = curve(group, setting.metric, last_phase)
        if not len(c.x):
            continue
        look = palette.line(group.method, group.place)
        few = len(c.x) == 1 or (group.runs[0].is_stream and len(c.x) <= 30)
        dot: dict[str, Any] = {"marker": "o", "markersize": 3} if few else {}
        axes.plot(c.x, c.mean, **dot | look)
        if c.n.max() > 1:
            axes.fill_between(c.x, c.low, c.high, color=look["color"], alpha=0.16, linewidth=0, zorder=1.5)
        drawn.append((group, c))
    if not last_phase:
        for x in boundaries(setting.runs):
            axes.axvline(x, color="#A0A0A0", linewidth=0.8, zorder=1)
    right = max((c.x.max() for _, c in drawn), default=0) or 1
    axes.set_xlim(0, right)
    axes.margins(y=0.04)
    axes.set_xlabel(style.AXES[setting.x])
    axes.set_ylabel(setting.y_label)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if setting.runs[0].is_stream:
        style.number_tasks(axes, right)
    elif right >= 1e4:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return drawn


def end_of(c: Curve) -> float:
    return float(c.mean[np.isfinite(c.mean)][-1])


def legend_of(drawn: Drawn, palette: style.Palette, n: bool = False, width: int = 34) -> tuple[list[Line2D], list[str]]:
    """Lines and names for a legend, one for each name.

    Args:
        drawn: what `draw` returned.
        palette: colours.
        n: whether to write the number of seeds too.
        width: of a name in letters, beyond which it goes on below.
    """
    lines: dict[str, Line2D] = {}
    for group, _ in drawn:
        text = textwrap.fill(group.label + (f" (n={len(group.runs)})" if n else ""), width)
        lines.setdefault(text, Line2D([], [], **palette.line(group.method, group.place)))
    return [*lines.values()], [*lines]


def seeds_text(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {n} seed{'s' if counts[-1] > 1 else ''}"


def caption(drawn: Drawn, more: str = "") -> str:
    """What the lines and bands are, and how many seeds."""
    groups = [group for group, _ in drawn]
    most = max(len(group.runs) for group in groups)
    band = "from one seed to the other" if most == 2 else "± standard error"
    text = f"Mean over {seeds_text(groups)}; band: {band}." if most > 1 else f"{seeds_text(groups)}, no band."
    cut = "Bands are cut where no value can be." if any(c.cut for _, c in drawn) else ""
    return " ".join(part for part in (text, cut, more) if part)


def save(figure: Figure, path: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Writes a figure as PNG and PDF, or one of these, without a date in it, and closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in formats or FORMATS]
    for target in paths:
        figure.savefig(target, metadata={"CreationDate": None} if target.suffix == ".pdf" else {})
    plt.close(figure)
    return paths


def setting_figure(setting: Setting, palette: style.Palette, width: str | None = None) -> Figure:
    """One setting alone; on a page with the last phase enlarged beside it, where there are phases.

    Args:
        setting: what to draw.
        palette: colours.
        width: "column" or "page"; None takes a page if there are phases.
    """
    enlarged = width != "column" and bool(boundaries(setting.runs))
    page = enlarged or width == "page"
    size = (style.PAGE, 2.6) if page else (style.COLUMN, 3.0)
    figure, axes = plt.subplots(1, 1 + enlarged, figsize=size, squeeze=False, layout="constrained")
    drawn = draw(axes[0, 0], setting, palette)
    below = caption(drawn, "Vertical line: phase boundary." if boundaries(setting.runs) else "")
    if enlarged:
        enlarge(axes[0, 1], draw(axes[0, 1], setting, palette, last_phase=True))
        below += " Right: the last phase, enlarged."
    unequal = len({len(group.runs) for group in setting.groups}) > 1
    lines, names = legend_of(drawn, palette, unequal, 34 if page else 56)
    if page:
        figure.legend(lines, names, loc="outside right upper")
    else:  # above, as many beside each other as there is room for, in a figure that grows with them
        beside = min(3, 62 // (max(map(len, names), default=0) + 6)) or 1
        figure.set_figheight(2.75 + 0.13 * -(-len(names) // beside))
        figure.legend(lines, names, loc="outside upper center", ncols=beside, labelspacing=0.3)
    axes[0, 0].set_title(title(setting, 60 if enlarged else 124 if page else 50))
    chars = 140 if page else 66
    figure.supxlabel(textwrap.fill(below, chars), fontsize=6.2, color=GREY, x=0.01, ha="left")
    return figure


def enlarge(axes: Axes, drawn: Drawn) -> None:
    """Limits the height to what the lines need after the first fifth of the phase."""
    late = [c.x > 0.2 * axes.get_xlim()[1] for _, c in drawn]
    edges = [edge[at] for (_, c), at in zip(drawn, late, strict=True) for edge in (c.low, c.high, c.mean)]
    values = np.concatenate([edge[np.isfinite(edge)] for edge in edges])
    if not len(values):
        return
    room = 0.05 * np.ptp(values) or 0.01
    axes.set_ylim(values.min() - room, values.max() + room)
    axes.set_ylabel("")


def title(setting: Setting, width: int = 60) -> str:
    head = ", ".join(style.name(part) for part in (setting.benchmark, setting.dataset) if part)
    extra = " · ".join(part for part in (style.name(setting.model), setting.detail) if part)
    return textwrap.fill(f"{head} · {extra}" if extra else head, width)
