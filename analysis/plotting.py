"""Draw learning curves with captions and legends, and save figures."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis import style
from analysis.coinciding import separate
from analysis.curves import Curve, boundaries, mean_curve
from analysis.formats import printable
from analysis.runs import Group, Setting

FORMATS = ("png", "pdf")
GREY = "#777777"
Drawn = list[tuple[Group, Curve]]


def draw(axes: Axes, setting: Setting, palette: style.Palette, last_phase: bool = False) -> Drawn:
    """Draw every method of a setting: mean line, band over seeds, phase boundaries.

    Args:
        axes: the axes to draw on.
        setting: the setting to draw.
        palette: the methods' colours.
        last_phase: whether to draw only the last phase, from 0.

    Returns:
        The groups with their curves, for legends.
    """
    curves = [(group, mean_curve(group, setting.metric, last_phase)) for group in setting.groups]
    drawn = [(group, c) for group, c in curves if len(c.x)]
    for place, (group, c) in enumerate(drawn):
        look = palette.line(group.method, group.place)
        has_few_points = len(c.x) == 1 or (group.runs[0].is_stream and len(c.x) <= 30)
        dot: dict[str, Any] = {"marker": "o", "markersize": 3} if has_few_points else {}
        if has_few_points:
            look.pop("markevery", None)  # each point has its mark
        elif "markevery" in look:  # the marks of lines that coincide stand beside each other
            start, step = 0.0, look["markevery"]
            look["markevery"] = (start + step * place / len(drawn), step)
        axes.plot(c.x, c.mean, **dot | look, label=group.key)
        if c.n.max() > 1:
            axes.fill_between(c.x, c.low, c.high, color=look["color"], alpha=0.16, linewidth=0, zorder=1.5)
    if not last_phase:
        for x in boundaries(setting.runs):
            axes.axvline(x, color="#A0A0A0", linewidth=0.8, zorder=1)
    right = max((c.x.max() for _, c in drawn), default=0) or 1
    axes.set_xlim(0, right)
    axes.margins(y=0.04)
    axes.set_xlabel(f"{style.COUNTS[setting.x]} since the boundary" if last_phase else style.AXES[setting.x])
    axes.set_ylabel(setting.y_label)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if setting.runs[0].is_stream:
        style.number_tasks(axes, right)
    elif right >= 1e4:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return drawn


def end_of(c: Curve) -> float:
    """Return the last finite mean of a curve."""
    return float(c.mean[np.isfinite(c.mean)][-1])


def legend_of(drawn: Drawn, palette: style.Palette, n: bool = False, width: int = 34) -> tuple[list[Line2D], list[str]]:
    """Return lines and names for a legend, one for each name.

    Variants of a method have their values behind its name, "FIRE 5, spectral"; `variants_text` says of which options.

    Args:
        drawn: what `draw` returned.
        palette: the methods' colours.
        n: whether names include the number of seeds.
        width: letters in a line of a name; a longer name has several lines.
    """
    lines: dict[str, Line2D] = {}
    varied = variants([group for group, _ in drawn])
    for group, _ in drawn:
        name, options = parts_of_label(group.label)
        text = f"{name} {', '.join(options.values())}" if name in varied else group.label
        text = textwrap.fill(text + (f" (n={len(group.runs)})" if n else ""), width)
        lines.setdefault(text, Line2D([], [], **palette.line(group.method, group.place)))
    return [*lines.values()], [*lines]


def variants(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the methods all of whose lines differ by the same options: name -> names of these options."""
    options_of_labels: dict[str, list[list[str]]] = {}  # name -> names of the options in each of its labels
    for label in dict.fromkeys(group.label for group in groups):
        name, options = parts_of_label(label)
        options_of_labels.setdefault(name, []).append([*options])
    result = {}
    for name, option_lists in options_of_labels.items():
        first = option_lists[0]
        if len(option_lists) > 1 and first and all(options == first for options in option_lists):
            result[name] = first
    return result


def variants_text(groups: Sequence[Group]) -> str:
    """Return the sentence that says which options the values behind names in a legend belong to; empty if none."""
    return " ".join(f"Behind {name}: {', '.join(options)}." for name, options in variants(groups).items())


def parts_of_label(label: str) -> tuple[str, dict[str, str]]:
    """Split a label such as "FIRE (iterations=5, norm_init=spectral)" into its name and its options.

    A label whose brackets hold anything but options is returned as a name without options.
    """
    name, _, detail = label.removesuffix(")").partition(" (")
    options = [option.split("=", 1) for option in detail.split(", ")]
    if any(len(option) != 2 for option in options):
        return label, {}
    return name, dict(options)


def add_words(figure: Figure, words: str, page: bool) -> None:
    """Put words below all panels, and make the figure higher by their height, so that panels keep their size.

    Args:
        figure: the figure.
        words: text of any length; it is broken into lines.
        page: whether the figure is as wide as a page; otherwise it is as wide as a column.
    """
    text = textwrap.fill(words, 140 if page else 66)
    figure.supxlabel(text, fontsize=6.2, color=GREY, x=0.01, ha="left")
    figure.set_figheight(figure.get_figheight() + 0.11 * text.count("\n"))


def add_legend(figure: Figure, lines: list[Line2D], names: list[str], most: int = 6) -> None:
    """Put a legend above all panels, and make the figure higher by its height, so that panels keep their size.

    Args:
        figure: the figure.
        lines: the line beside each name.
        names: the names.
        most: the largest number of columns; fewer are used if they would be wider than the figure.
    """
    if not lines:
        return
    inches = figure.get_size_inches()
    for columns in range(min(len(lines), most), 0, -1):
        legend = figure.legend(
            lines, names, loc="outside upper center", ncols=columns, labelspacing=0.3, columnspacing=1.5
        )
        box = legend.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
        if box.width <= 0.98 * inches[0] * figure.dpi or columns == 1:
            break
        legend.remove()
    figure.set_figheight(inches[1] + box.height / figure.dpi)


def seeds_text(groups: Sequence[Group]) -> str:
    """Return how many seeds the methods have, such as "n = 3 seeds" or "n = 1 to 3 seeds"."""
    counts = sorted({len(group.runs) for group in groups})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {n} seed{'s' if counts[-1] > 1 else ''}"


def caption(drawn: Drawn, more: str = "") -> str:
    """Return the text that says what lines and bands are, and how many seeds there are."""
    counts = {len(group.runs) for group, _ in drawn}
    if counts == {1}:
        text = "One seed for each line, so there are no bands."
    elif counts <= {1, 2}:
        text = f"Mean over {seeds_text([group for group, _ in drawn])}; band: from one seed to the other."
    else:
        text = f"Mean over {seeds_text([group for group, _ in drawn])}; band: ± standard error."
    cut = "Bands are cut where no value can be." if any(c.cut for _, c in drawn) else ""
    names = dict.fromkeys(parts_of_label(group.label)[0] for group, c in drawn if (c.n < len(group.runs)).any())
    fewer = f"Points of {', '.join(names)} that not all seeds reached are means of those that did." if names else ""
    diverged = {group.label: sum(run.has_diverged for run in group.runs) for group, _ in drawn}
    lost = [f"of {label} {count}" for label, count in diverged.items() if count]
    seeds_lost = f"Seeds that diverged: {', '.join(lost)}." if lost else ""
    variants = variants_text([group for group, _ in drawn])
    return " ".join(part for part in (text, cut, fewer, seeds_lost, variants, more) if part)


def numbers_are(groups: Sequence[Group]) -> str:
    """Return what the numbers in a table of results are, such as "mean [95 % interval]"."""
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return "of one seed"
    both, interval = "mean (the two seeds)", "mean [95 % interval]"
    if counts <= {1, 2}:
        return both
    return f"{interval}; of two seeds {both}" if 2 in counts else interval


def save(figure: Figure, path: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Write a figure in each of the formats (PNG and PDF by default) and close it; return the paths.

    Files have no date in them, so that the same figure is the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in formats or FORMATS]
    for target in paths:
        figure.savefig(target, metadata={"CreationDate": None} if target.suffix == ".pdf" else {})
    plt.close(figure)
    return paths


def setting_figure(setting: Setting, palette: style.Palette, width: str | None = None) -> Figure:
    """Draw one setting; on a page with several phases, the last phase is enlarged beside it.

    Args:
        setting: the setting to draw.
        palette: the methods' colours.
        width: "column" or "page"; None takes a page if there are phases.
    """
    phases = boundaries(setting.runs)
    is_page = bool(phases) if width is None else width == "page"
    late = last_part(setting) if is_page and phases else None
    size = (style.PAGE, 2.45) if is_page else (style.COLUMN, 2.75)
    figure, axes = plt.subplots(1, 1 if late is None else 2, figsize=size, squeeze=False, layout="constrained")
    drawn = draw(axes[0, 0], setting, palette)
    below = caption(drawn, "Vertical line: phase boundary." if phases else "")
    if late is not None:
        draw(axes[0, 1], setting, palette)
        enlarge(axes[0, 0], axes[0, 1], drawn, late)
        below += " Right: the framed part of the last phase, enlarged."
    unequal = len({len(group.runs) for group in setting.groups}) > 1
    letters = 60 if late is not None else 124 if is_page else 50  # that fit above the panel
    axes[0, 0].set_title(title(setting, letters))
    add_words(figure, below, is_page)
    add_legend(figure, *legend_of(drawn, palette, unequal, 40 if is_page else 56), most=7 if is_page else 3)
    separate(figure)
    return figure


def last_part(setting: Setting) -> tuple[float, float] | None:
    """Return where the last four fifths of the last phase begin and end; None if no curve has three points there.

    Curves rise or fall steeply in the first fifth, and an enlargement that included it would show little else.
    """
    start = boundaries(setting.runs)[-1]
    curves = [mean_curve(group, setting.metric) for group in setting.groups]
    end = max((float(c.x.max()) for c in curves if len(c.x)), default=start)
    begin = start + 0.2 * (end - start)
    points = max((int((c.x >= begin).sum()) for c in curves), default=0)
    return (begin, end) if points >= 3 else None


def enlarge(overview: Axes, detail: Axes, drawn: Drawn, late: tuple[float, float]) -> None:
    """Limit the axes `detail` to a range of x, and frame the same part in `overview`.

    Args:
        overview: axes with the complete curves.
        detail: axes with the same curves; the vertical limits fit lines and bands within the range.
        drawn: what `draw` returned.
        late: the range, (begin, end) on the horizontal axis.
    """
    low, high = np.inf, -np.inf
    for _, c in drawn:
        inside = (c.x >= late[0]) & (c.x <= late[1])
        for edge in (c.low, c.high, c.mean):
            finite = np.isfinite(edge)
            if finite.any():
                values = [*edge[inside & finite], np.interp(late[0], c.x[finite], edge[finite])]
                low, high = min(low, *values), max(high, *values)
    if not np.isfinite(low):
        return
    room = 0.05 * (high - low) or 0.01
    detail.set_xlim(*late)
    detail.set_ylim(low - room, high + room)
    detail.set_ylabel("")
    frame = (late[0], low - room), late[1] - late[0], high - low + 2 * room
    overview.add_patch(Rectangle(*frame, fill=False, edgecolor=GREY, linewidth=0.7, linestyle=(0, (2, 1.5)), zorder=4))


def title(setting: Setting, width: int = 60) -> str:
    """Return a title: benchmark, data set or environment, model, and the options that distinguish the setting."""
    names = [style.name(part) for part in (setting.benchmark, setting.dataset, setting.model) if part]
    text = printable(style.sentence_case(", ".join([*names, *filter(None, [setting.detail])])))
    return textwrap.fill(text, width, break_on_hyphens=False)


def chosen_text(fitting: Sequence[Sequence[Setting]]) -> str:
    """Return the titles of settings that were chosen among several; empty if there was nothing to choose.

    Args:
        fitting: lists of settings, of each of which the first was chosen.
    """
    several = [members for members in fitting if len(members) > 1]
    return "; ".join(f"{title(members[0], 999)} (1 of {len(members)} settings)" for members in several)
