"""Draw the study how_far: what an act wins back and what it keeps, over how far it goes to the isometry.

python -m studies.how_far_figure      draws how_far.png from the tables beside the page
"""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.estimates import Estimate, mean
from fire_core.tools.output import keep_output
from studies.driver import Study, read_csv
from studies.report import Result, results_of

HOW_FAR = {"base": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "fire": 1.0}
TITLES = {
    "labels": "random labels",
    "cartpole": "CartPole, DQN",
    "permuted_fashion": "permuted Fashion-MNIST",
    "pendulum": "double pendulum, SAC",
    "warm_start": "CIFAR-10, warm start",
    "permuted_text": "permuted text, GPT",
    "warm_start_augmented": "CIFAR-10, warm start, augmented",
    "labels_fashion": "random labels, Fashion-MNIST",
}


def main() -> None:
    """Draw the figure beside the study's tables."""
    style.use()
    study = Study("how_far", 1)
    draw(shown_in(study)).savefig(study.folder / "how_far.png", dpi=200)


def shown_in(study: Study) -> dict[str, Result]:
    """Return title -> result for each setting of each stream that has run and shows a loss of plasticity."""
    shown = {}
    for name, stream in study.streams.items():
        results = results_of(stream, read_csv(study.folder / f"{name}.csv"))
        for setting, result in results.items():
            if result.has_loss(stream.measure):
                shown[", ".join(filter(None, (TITLES[name], setting)))] = result
    return shown


def draw(shown: Mapping[str, Result]) -> Figure:
    """Draw a line for each result, with 95 % intervals: above the part won back, below the share that is kept.

    Args:
        shown: title -> result.
    """
    figure = Figure(figsize=(6.0, 6.0), layout="constrained")
    won, kept = figure.subplots(2, 1, sharex=True)
    for number, (title, result) in enumerate(shown.items()):
        colours, dashes = style.VARIANTS, style.VARIANT_DASHES
        look = {
            "color": colours[number % len(colours)],
            "linestyle": dashes[number % len(dashes)],
            "marker": "osD^vP<>X"[number % 9],
        }
        rows = [row for row in HOW_FAR if row in result.values]
        plot(won, title, {HOW_FAR[row]: result.won_back(row) for row in rows}, look)
        rows = [row for row in rows if row in result.kept]
        plot(kept, title, {HOW_FAR[row]: mean([*result.kept[row].values()]) for row in rows}, look)
    for panel, height, name in ((won, 1.0, "a new network"), (won, 0.0, "no intervention"), (kept, 1.0, "all kept")):
        panel.axhline(height, color="0.6", linewidth=0.8, zorder=0)
        panel.annotate(
            name, (1, height), (-2, 2), ("axes fraction", "data"), "offset points", ha="right", color="0.4", fontsize=8
        )
    won.set_ylabel("Part of the loss that is won back")
    kept.set_ylabel("Left of the old task right after")
    kept.set_xlabel("How far: 0 is no intervention, 1 is FIRE")
    kept.set_xticks([*HOW_FAR.values()])
    figure.legend(*won.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def plot(panel: Axes, title: str, points: Mapping[float, Estimate], look: Mapping[str, Any]) -> None:
    """Draw one line with a bar of its interval at each point."""
    centre = [estimate.mean for estimate in points.values()]
    below = [estimate.mean - estimate.low for estimate in points.values()]
    above = [estimate.high - estimate.mean for estimate in points.values()]
    panel.errorbar([*points], centre, [below, above], capsize=2, label=title, **look)


if __name__ == "__main__":
    keep_output()
    main()
