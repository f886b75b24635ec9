"""The paper's figures 2, 3, 4a and 4b: grids of panels with the runs that fit."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import plotting, style
from analysis.coinciding import separate
from analysis.runs import Setting


@dataclass(frozen=True)
class Panel:
    """One place in a grid.

    Args:
        title: above it.
        benchmark: the benchmark's name, or "language" or "rl".
        what: the data set, starting checkpoint or environment; punctuation and case do not count.
        model: preferred where several settings fit.
    """

    title: str
    benchmark: str
    what: str
    model: str = ""

    def fits(self, setting: Setting) -> bool:
        if setting.domain == "vision":
            return (setting.benchmark, plain(setting.dataset)) == (self.benchmark, plain(self.what))
        if setting.domain == "language":
            return self.benchmark == "language" and plain(starting_checkpoint(setting)) == plain(self.what)
        return self.benchmark == "rl" and plain(self.what) in plain(setting.dataset)

    def choose(self, settings: Sequence[Setting]) -> Setting | None:
        """The setting to show: the paper's model first, then the one with most runs."""
        fitting = [setting for setting in settings if self.fits(setting)]
        runs = [sum(len(group.runs) for group in setting.groups) for setting in fitting]
        order = sorted(zip(fitting, runs, strict=True), key=lambda p: (p[0].model != self.model, -p[1]))
        return order[0][0] if order else None


@dataclass(frozen=True)
class Grid:
    """A figure of the paper."""

    name: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]
    last_phase: bool = False  # draw the last phase alone, from 0
    program: str = ""  # whose other settings may be shown beside the paper's


DATA = (
    ("CIFAR-10, ResNet-18", "cifar10", "resnet18"),
    ("CIFAR-100, ViT-Tiny", "cifar100", "vit_tiny"),
    ("Tiny-ImageNet, VGG-16", "tinyimagenet", "vgg16"),
)
BENCHMARKS = ("warm_start", "continual", "class_incremental")
GAMES = ("Asterix", "BeamRider", "DemonAttack")
TASKS = ("h1-walk-v0", "h1-balance_simple-v0", "h1-run-v0")
GRIDS = (
    Grid(
        "figure2",
        "Continual vision",
        tuple(tuple(Panel(t, b, d, m) for t, d, m in DATA) for b in BENCHMARKS),
    ),
    Grid(
        "figure3",
        "Continual pre-training",
        (tuple(Panel(f"From {s}", "language", s.split()[0]) for s in ("best checkpoint", "30k", "60k")),),
        last_phase=True,
        program="language",
    ),
    Grid("figure4a", "DQN on Atari", (tuple(Panel(game, "rl", game) for game in GAMES),), program="dqn"),
    Grid("figure4b", "SAC on HumanoidBench", (tuple(Panel(task, "rl", task) for task in TASKS),), program="sac"),
)


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def starting_checkpoint(setting: Setting) -> str:
    """From which checkpoint of its first phase a language run goes on: `benchmark.start`."""
    benchmark = setting.groups[0].runs[0].config.get("benchmark")
    return str(benchmark.get("start", "")) if isinstance(benchmark, dict) else ""


def with_others(grid: Grid, settings: Sequence[Setting]) -> Grid:
    """The grid with a panel for each start or environment that its program ran and the paper does not show."""
    others = {}
    for setting in settings:
        run = setting.groups[0].runs[0]
        if run.config.get("program") == grid.program and not any(p.fits(setting) for row in grid.rows for p in row):
            start = starting_checkpoint(setting)
            from_start = f"From {'the end' if start == 'end' else start}"
            what, title = (start, from_start) if grid.program == "language" else (run.dataset, style.name(run.dataset))
            others[plain(what)] = Panel(title, "language" if grid.program == "language" else "rl", what)
    if not grid.program or not others:
        return grid
    return replace(grid, rows=((*grid.rows[0], *others.values()),))


def has_data(grid: Grid, settings: Sequence[Setting]) -> bool:
    return any(panel.choose(settings) for row in grid.rows for panel in row)


def grid_figure(grid: Grid, settings: Sequence[Setting], palette: style.Palette, width: str = "page") -> Figure:
    """A figure of the paper, with the same methods and colours in each panel; panels without runs are left out.

    Args:
        grid: which one; some panel has runs.
        settings: what was run.
        palette: colours.
        width: "page" or "column"; in a column the panels of a single row are stacked.
    """
    chosen = {panel: panel.choose(settings) for row in grid.rows for panel in row}
    missing = [panel for panel, setting in chosen.items() if setting is None]
    panels = with_runs(grid, missing)
    if width == "column" and len(panels) == 1:
        panels = [[panel] for panel in panels[0]]
    rows, columns = len(panels), len(panels[0])
    size = (style.PAGE if columns > 1 else style.COLUMN, 1.75 * rows + 0.4)
    figure = plt.figure(figsize=size, layout="constrained")
    places = figure.add_gridspec(rows, columns)
    shown: plotting.Drawn = []
    for row, column in np.ndindex(rows, columns):
        panel = panels[row][column]
        setting = chosen[panel]
        if setting is None:
            continue
        ax = figure.add_subplot(places[row, column])
        shown += fill(ax, panel, setting, palette, grid.last_phase)
        # A panel beside another of the same measure, or above another, needs no label of its own.
        left = [chosen[other] for other in panels[row][:column]]
        below = [chosen[others[column]] for others in panels[row + 1 :]]
        if any(other is not None and other.y_label == setting.y_label for other in left):
            ax.set_ylabel("")
        if any(other is not None and other.x == setting.x for other in below):
            ax.set_xlabel("")
    plotting.add_words(figure, footer(grid, shown, missing), page=columns > 1)
    plotting.add_legend(figure, *plotting.legend_of(shown, palette), most=6 if columns > 1 else 3)
    separate(figure)
    return figure


def with_runs(grid: Grid, missing: Sequence[Panel]) -> list[list[Panel]]:
    """The rows and columns of a grid that have a panel with runs."""
    rows = [row for row in grid.rows if not all(panel in missing for panel in row)]
    columns = [i for i, column in enumerate(zip(*rows, strict=True)) if not all(panel in missing for panel in column)]
    return [[row[i] for i in columns] for row in rows]


def fill(axes: Axes, panel: Panel, setting: Setting, palette: style.Palette, last_phase: bool) -> plotting.Drawn:
    """Draws one panel."""
    drawn = plotting.draw(axes, setting, palette, last_phase)
    dataset = panel.title.split(",")[0]
    named = panel.title if panel.model in ("", setting.model) else f"{dataset}, {style.name(setting.model)}"
    counts = plotting.seeds_text(setting.groups)
    axes.set_title(f"{named} ({counts.removesuffix(' seeds').removesuffix(' seed')})", fontsize=7.5)
    axes.tick_params(labelsize=6.5)
    for group, c in drawn if panel.benchmark == "warm_start" else []:
        if group.method in ("full_reset", "base"):
            axes.axhline(plotting.end_of(c), color=palette.colours[group.method], linewidth=0.6, alpha=0.7, zorder=1)
    return drawn


def footer(grid: Grid, shown: plotting.Drawn, missing: Sequence[Panel]) -> str:
    """What lines are, and which of the paper's panels have no runs."""
    event = "when the method acted" if grid.name.startswith("figure4") else "phase boundaries"
    text = plotting.caption(shown)
    if not grid.last_phase:
        text += f" Vertical lines: {event}."
    if any(panel.benchmark == "warm_start" for row in grid.rows for panel in row if panel not in missing):
        text += " Thin horizontal lines in panels of warm start: final values of full reset and base."
    if missing and len(grid.rows) > 1:
        text += " Panels without runs are left out."
    elif missing:
        text += f" Without runs: {', '.join(panel.title for panel in missing)}."
    return text
