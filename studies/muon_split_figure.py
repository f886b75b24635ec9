"""Draw the study muon_split: validation loss over Muon's rate, and over the iterations at the rates that were chosen.

python -m studies.muon_split_figure                   draws from the tables beside the page
python -m studies.muon_split_figure runs/studies/muon_split    reads the curves of the report runs into a table first
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from analysis.estimates import mean
from fire_core.tools.output import keep_output
from studies.driver import ROOT
from studies.muon_split import ROWS, STREAMS
from studies.tables import Row, logged, read_csv, write_derived

FOLDER = ROOT / "docs" / "studies" / "muon_split"
STREAM = STREAMS["gpt"]
STYLES: dict[str, dict[str, Any]] = {
    "split": {"color": "#D55E00", "marker": "o"},
    "fused": {"color": "#6E6E6E", "marker": "s", "linestyle": "--"},
}


def main(arguments: Sequence[str]) -> None:
    """Read the curves of the runs below a folder into a table, if one is named, and draw the figure."""
    if arguments:
        command = "python -m studies.muon_split_figure RUNS"
        write_derived(FOLDER / "gpt.curves.csv", curves_of(Path(arguments[0])), [FOLDER / "gpt.csv"], command)
    figure = draw(read_csv(FOLDER / "gpt.search.csv"), read_csv(FOLDER / "gpt.curves.csv"))
    figure.savefig(FOLDER / "muon_split.png", dpi=150)


def curves_of(runs: Path) -> list[Row]:
    """Return a line for each evaluation of each finished run on a report seed: setting, row, seed, iteration, loss.

    Args:
        runs: folder of the study's runs.

    Raises:
        SystemExit: there is no such run.
    """
    lines: list[Row] = []
    seen: set[tuple[Any, ...]] = set()
    for done in sorted(runs.rglob("language/*/DONE")):
        config = OmegaConf.load(done.parent / "config.yaml")
        row = "split" if config.method.split else "fused"
        if config.seed not in STREAM.report_seeds(row):
            continue
        run = {"setting": f"width {config.model.n_embd}", "row": row, "seed": config.seed}
        if (key := tuple(run.values())) in seen:
            sys.exit(f"error: {done.parent} is a second run of {' '.join(map(str, key))}: move one of the two away")
        seen.add(key)
        for entry in logged(done.parent):
            if "val/loss" in entry:
                lines.append(run | {"iteration": entry["iteration"], "val/loss": entry["val/loss"]})
    if not lines:
        sys.exit(f"error: {runs} holds no finished run on a report seed of muon_split")
    return sorted(lines, key=lambda line: (line["setting"], line["row"], line["seed"], line["iteration"]))


def draw(search: Sequence[Row], curves: Sequence[Row]) -> Figure:
    """Draw a column for each width: above the loss over the searched rate, below over the iterations.

    Args:
        search: lines of gpt.search.csv.
        curves: lines of gpt.curves.csv.
    """
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    panels = figure.subplots(2, len(STREAM.settings), squeeze=False)
    for column, setting in enumerate(STREAM.settings):
        over_rate, over_iterations = panels[:, column]
        for row in ROWS:
            searched = [
                (float(line["searched"].removeprefix("lr=")), float(line["val/loss"]))
                for line in search
                if (line["setting"], line["row"]) == (setting, row)
            ]
            plot(over_rate, row, searched)
            reported = [
                (float(line["iteration"]), float(line["val/loss"]))
                for line in curves
                if (line["setting"], line["row"]) == (setting, row)
            ]
            plot(over_iterations, row, reported)
        over_rate.set(title=f"{setting}: two seeds of the search", xscale="log", xlabel="Muon's rate")
        over_rate.set_xticks([0.004, 0.01, 0.025], ["0.004", "0.01", "0.025"])
        over_rate.minorticks_off()
        over_iterations.set(title=f"{setting}: five report seeds", xlabel="iteration")
    for panel in panels[:, 0]:
        panel.set_ylabel("validation loss (nats a byte)")
    panels[0, 0].legend()
    return figure


def plot(panel: Axes, row: str, points: Sequence[tuple[float, float]]) -> None:
    """Draw one row: the mean at each x in a band: its 95 % interval, or of two points both."""
    xs = sorted({x for x, _ in points})
    estimates = [mean([y for other, y in points if other == x]) for x in xs]
    panel.plot(xs, [estimate.mean for estimate in estimates], label=row, markersize=4, **STYLES[row])
    lows, highs = [estimate.low for estimate in estimates], [estimate.high for estimate in estimates]
    panel.fill_between(xs, lows, highs, color=STYLES[row]["color"], alpha=0.2, linewidth=0)


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
