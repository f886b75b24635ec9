"""The paper's figures 2, 3, 4a and 4b: grids of panels with the runs that fit."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import plotting, rl, style
from analysis.coinciding import separate
from analysis.runs import Setting


@dataclass(frozen=True)
class Panel:
    """One panel of a grid, and which setting it shows.

    Args:
        title: the panel's title.
        benchmark: the benchmark's name, or "language" or "rl".
        what: name of the data set, starting checkpoint or environment. It must be the setting's very name, since names
            may be alike (`asterix` and `minatar_asterix`) or in any script.
        model: name of the model that is preferred if several settings fit.
    """

    title: str
    benchmark: str
    what: str
    model: str = ""

    def fits(self, setting: Setting) -> bool:
        """Return whether the panel can show a setting."""
        if setting.domain == "vision":
            return (setting.benchmark, setting.dataset) == (self.benchmark, self.what)
        if setting.domain == "language":
            return (self.benchmark, self.what) == ("language", starting_checkpoint(setting))
        return (self.benchmark, self.what) == ("rl", setting.dataset)

    def fitting(self, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings that fit, first the one to show: preferably of the panel's model, then with most runs."""
        fitting = [setting for setting in settings if self.fits(setting)]
        return sorted(fitting, key=lambda setting: (setting.model != self.model, -len(setting.runs)))

    def choose(self, settings: Sequence[Setting]) -> Setting | None:
        """Return the setting to show; None if none fits."""
        return next(iter(self.fitting(settings)), None)


@dataclass(frozen=True)
class Grid:
    """The rows of panels of a figure of the paper."""

    name: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]
    last_phase: bool = False  # whether only the last phase is drawn, from 0
    program: str = ""  # name of the program whose further settings get panels too; empty: the paper's panels only
    metric: str = ""  # what a panel shows if all its runs have it; otherwise it shows the runs' main metric


ACROSS = 4  # panels in a row of environments or starts, more of which would be too narrow to be read
EMPTY = Panel("", "", "")  # fills a row
DATA = (
    ("CIFAR-10, ResNet-18", "cifar10", "resnet18"),
    ("CIFAR-100, ViT-Tiny", "cifar100", "vit_tiny"),
    ("Tiny-ImageNet, VGG-16", "tinyimagenet", "vgg16"),
)
BENCHMARKS = ("warm_start", "continual", "class_incremental")
GAMES = ("asterix", "beam_rider", "demon_attack")
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
    Grid(
        "figure4a",
        "DQN on Atari",
        (tuple(Panel(style.name(game), "rl", game) for game in GAMES),),
        program="dqn",
        metric=rl.NORMALISED,
    ),
    Grid("figure4b", "SAC on HumanoidBench", (tuple(Panel(task, "rl", task) for task in TASKS),), program="sac"),
)


def starting_checkpoint(setting: Setting) -> str:
    """Return the first phase's checkpoint that a language setting's second phase starts from; else an empty text."""
    benchmark = setting.groups[0].runs[0].config.get("benchmark")
    return str(benchmark.get("start", "")) if isinstance(benchmark, dict) else ""


def with_others(grid: Grid, settings: Sequence[Setting]) -> Grid:
    """Return the grid with a further panel for each start or environment that was run and is not in the paper."""
    others = {}
    for setting in settings:
        run = setting.groups[0].runs[0]
        if run.config.get("program") == grid.program and not any(p.fits(setting) for row in grid.rows for p in row):
            if grid.program == "language":
                start = starting_checkpoint(setting)
                if not start:  # a stream of texts, or a single text
                    continue
                panel = Panel("From the end" if start == "end" else f"From {start}", "language", start)
            else:
                panel = Panel(style.name(run.dataset), "rl", run.dataset)
            others[panel.what] = panel
    if not grid.program or not others:
        return grid
    return replace(grid, rows=((*grid.rows[0], *others.values()),))


def has_data(grid: Grid, settings: Sequence[Setting]) -> bool:
    """Return whether any panel of a grid has runs."""
    return any(panel.choose(settings) for row in grid.rows for panel in row)


def grid_figure(grid: Grid, settings: Sequence[Setting], palette: style.Palette, width: str = "page") -> Figure:
    """Draw a figure of the paper, with the same colours in each panel; panels without runs are left out.

    Args:
        grid: the figure's panels, of which at least one has runs.
        settings: all settings that were run.
        palette: the methods' colours.
        width: "page" or "column"; in a column the panels of a single row are stacked, on a page a long row is broken.
    """
    chosen = {panel: in_metric(grid.metric, panel.choose(settings)) for row in grid.rows for panel in row}
    missing = [panel for panel, setting in chosen.items() if setting is None]
    chosen[EMPTY] = None
    panels = with_runs(grid, missing)
    if len(panels) == 1:
        panels = wrapped(panels[0], across=1 if width == "column" else ACROSS)
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
    fitting = [panel.fitting(settings) for row in grid.rows for panel in row]
    metrics = {setting.metric for setting in chosen.values() if setting}
    words = footer(grid, shown, missing, metrics, plotting.chosen_text(fitting))
    plotting.add_words(figure, words, page=columns > 1)
    plotting.add_legend(figure, *plotting.legend_of(shown, palette), most=6 if columns > 1 else 3)
    separate(figure)
    return figure


def in_metric(metric: str, setting: Setting | None) -> Setting | None:
    """Return a setting that shows a metric, if all its runs have it; otherwise the setting as it is."""
    if setting is None or not all(metric in run.history for run in setting.runs):
        return setting
    return replace(setting, metric=metric)


def with_runs(grid: Grid, missing: Sequence[Panel]) -> list[list[Panel]]:
    """Return the panels of a grid without the rows and columns in which no panel has runs."""
    rows = [row for row in grid.rows if not all(panel in missing for panel in row)]
    columns = []
    for index, column in enumerate(zip(*rows, strict=True)):
        if not all(panel in missing for panel in column):
            columns.append(index)
    return [[row[index] for index in columns] for row in rows]


def wrapped(panels: Sequence[Panel], across: int) -> list[list[Panel]]:
    """Return panels in rows of at most `across`; the last row is filled with `EMPTY`."""
    across = min(across, len(panels))
    rows = [list(panels[begin : begin + across]) for begin in range(0, len(panels), across)]
    rows[-1] += [EMPTY] * (across - len(rows[-1]))
    return rows


def fill(axes: Axes, panel: Panel, setting: Setting, palette: style.Palette, last_phase: bool) -> plotting.Drawn:
    """Draw one panel."""
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


def footer(grid: Grid, shown: plotting.Drawn, missing: Sequence[Panel], metrics: Container[str], chosen: str) -> str:
    """Return the text below a figure: what its lines are, and which of the paper's panels have no runs.

    Args:
        grid: the figure's panels.
        shown: what was drawn.
        missing: panels without runs.
        metrics: what the panels show.
        chosen: the settings of panels that several settings fit, see `plotting.chosen_text`.
    """
    event = "when the method acted" if grid.name.startswith("figure4") else "phase boundaries"
    text = plotting.caption(shown)
    if not grid.last_phase:
        text += f" Vertical lines: {event}."
    if any(panel.benchmark == "warm_start" for row in grid.rows for panel in row if panel not in missing):
        text += " Thin horizontal lines in panels of warm start: final values of full reset and base."
    if rl.NORMALISED in metrics:
        text += " Human-normalised: 0 is random play, 1 a human player."
    if chosen:
        text += f" Of several settings that fit a panel one is shown: {chosen}."
    if missing and len(grid.rows) > 1:
        text += " Panels without runs are left out."
    elif missing:
        text += f" Without runs: {', '.join(panel.title for panel in missing)}."
    return text
