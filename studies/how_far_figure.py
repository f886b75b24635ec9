"""Draw the study how_far: what an act wins back and what it keeps, over how far it goes to the isometry.

python -m studies.how_far_figure      draws how_far.png from the tables beside the page
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style
from analysis.estimates import Estimate
from fire_core.tools.output import keep_output
from studies.driver import Study
from studies.report import Result, missing_runs, results_of
from studies.tables import read_csv

HOW_FAR = {"base": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "fire": 1.0}
RIVALS = {"random_isometry": 1.2, "full_reset": 1.4, "snp": 1.6}  # right of the line, each at a place of its own
TICKS = {0.0: "0\nbase", 0.25: "0.25", 0.5: "0.5\nhalf", 0.75: "0.75", 1.0: "1\nFIRE"} | {
    RIVALS["random_isometry"]: "random\nisometry",
    RIVALS["full_reset"]: "full\nreset",
    RIVALS["snp"]: "S&P",
}
# The same acts with biases put back to their initial values, drawn as open marks.
BIASES_PUT_BACK = {f"{row}_biases": place for row, place in {**HOW_FAR, **RIVALS}.items()}
SHIFT = 0.02  # between the points of two streams, so that their bars do not hide each other
LIMITS = -0.5, 2.0  # of both panels; a point beyond stands at the edge
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
SETTINGS = {"share 0.25": "25 % new", "share 0.5": "50 % new", "share 1": "100 % new"}  # of `labels`


def main() -> None:
    """Draw the figure beside the study's tables."""
    style.use()
    study = Study("how_far", 1)
    if not (results := ended_results(study)):
        sys.exit("error: no stream of how_far that shows a loss has ended: python -m studies.driver how_far status")
    draw(results).savefig(study.folder / "how_far.png", dpi=200)


def ended_results(study: Study) -> dict[str, Result]:
    """Return title -> result for each setting that shows a loss of plasticity, of streams whose report has ended.

    Without a loss there is no part that could be won back.
    """
    results_by_title: dict[str, Result] = {}
    for name, stream in study.streams.items():
        results = results_of(stream, read_csv(study.folder / f"{name}.csv"))
        if not missing_runs(stream, results):
            results_by_title |= {
                ", ".join(filter(None, (TITLES[name], SETTINGS.get(setting, setting)))): result
                for setting, result in results.items()
                if result.has_loss()
            }
    return results_by_title


def draw(results: Mapping[str, Result]) -> Figure:
    """Draw a line for each result, with 95 % intervals: above the part won back, below the share that is kept.

    Args:
        results: title -> result; each shows a loss.
    """
    figure = Figure(figsize=(6.5, 6.5), layout="constrained")
    won, kept = figure.subplots(2, 1, sharex=True)
    for number, (title, result) in enumerate(results.items()):
        look = {
            "color": style.VARIANTS[number % len(style.VARIANTS)],
            "linestyle": style.VARIANT_DASHES[number % len(style.VARIANT_DASHES)],
            "marker": "osD^vP<>X"[number % 9],
        }
        shift = SHIFT * (number - (len(results) - 1) / 2)
        plot(won, result.won_back, result, look, shift)
        plot(kept, result.kept_share, result, look, shift, title)
    for panel, height, words in ((won, 1.0, "a new network"), (won, 0.0, "no act"), (kept, 1.0, "all kept")):
        panel.axhline(height, color="0.6", linewidth=0.8, zorder=0)
        place = {"xytext": (2, 2), "textcoords": "offset points", "color": "0.4", "fontsize": 8}
        panel.annotate(words, (0, height), xycoords=("axes fraction", "data"), **place)
    low, high = won.get_ylim()
    won.set_ylim(max(low, LIMITS[0]), min(high, LIMITS[1]))
    won.set_ylabel("Part of the lost plasticity\nthat is won back")
    kept.set_ylabel("Left of the old task right after an act")
    kept.set_xlabel("How far to the isometry, and other acts")
    kept.set_xticks([*TICKS], [*TICKS.values()])
    kept.set_xlim(-0.38, max(TICKS) + 0.1)  # left of the base there is room for the words
    handles, titles = kept.get_legend_handles_labels()
    for title, face in (("biases kept", "0.4"), ("biases put back", "white")):
        handles.append(Line2D([], [], linestyle="", marker="o", color="0.4", markerfacecolor=face))
        titles.append(title)
    figure.legend(handles, titles, loc="outside upper center", ncols=2)
    return figure


def plot(
    panel: Axes,
    number: Callable[[str], Estimate],
    result: Result,
    look: Mapping[str, Any],
    shift: float,
    title: str | None = None,
) -> None:
    """Draw a line over how far an act goes, and a mark for each other act, each point with a bar of its interval.

    Marks are open where an act puts biases back. A point beyond `LIMITS` stands at their edge, without a bar.

    Args:
        panel: where to draw.
        number: of a row.
        result: whose rows are drawn.
        look: colour, dash and mark.
        shift: by how much all points are moved to the right.
        title: for the legend.
    """
    for places, style_of_line in ((HOW_FAR, look["linestyle"]), (RIVALS, ""), (BIASES_PUT_BACK, "")):
        points = {place: number(row) for row, place in places.items() if row in result.values}
        points = {place: estimate for place, estimate in points.items() if estimate.n}
        centres = [min(max(estimate.mean, LIMITS[0]), LIMITS[1]) for estimate in points.values()]
        is_inside = [LIMITS[0] <= estimate.mean <= LIMITS[1] for estimate in points.values()]
        # Rounding may leave -1e-17 where all seeds agree. An interval that is not known stays NaN, which has no bar.
        # One that goes on beyond the edges, perhaps without end, is drawn a little way beyond, where the panel cuts it.
        bars = [
            np.clip((estimate.mean - estimate.low, estimate.high - estimate.mean), 0.0, LIMITS[1] - LIMITS[0])
            if inside
            else (0.0, 0.0)
            for inside, estimate in zip(is_inside, points.values(), strict=True)
        ]
        options = {**look, "linestyle": style_of_line, "label": title, "capsize": 2, "markersize": 5}
        if places is BIASES_PUT_BACK:
            options["markerfacecolor"] = "white"
        panel.errorbar([place + shift for place in points], centres, np.array(bars).reshape(-1, 2).T, **options)
        title = None


if __name__ == "__main__":
    keep_output()
    main()
