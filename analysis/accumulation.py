"""What accumulates under FIRE over a hundred tasks (docs/protocol.md, study 4): its table and its figure."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.result_figures import size_of
from analysis.summary import Column, Table, differences, summarise

NAMES = style.NAMES | {
    "fire_first": "FIRE, first layer alone",
    "fire_second": "FIRE, second layer alone",
    "fire_head": "FIRE, head alone",
    "fire_biases": "FIRE, biases as they began",
    "u_redrawn": "FIRE exact, U redrawn",
    "v_redrawn": "FIRE exact, V redrawn",
}
SCORE = "train/accuracy"  # at the end of a task
FIRST, LAST = 10, 10  # slopes begin with the eleventh task; `last` is the mean of the last ten
# Numbers of the network as a task ends, before the act.
STATE = {
    "boundary/dormant_ratio_before": "dormant",
    "boundary/alignment_before": "alignment",
    "boundary/output_scale_before": "output scale",
}
SHOWN = ("base", "full_reset", "random_isometry", "fire", "fire_exact", "fire_half", "fire_biases")  # in the figure
TABLE = Table(
    (
        Column("slope", "slope"),
        *differences("slope", "random_isometry", "fire"),
        Column("last ten tasks", "last"),
        *differences("last", "full_reset"),
    ),
    order="last ten tasks",
    rows="row",
)


def numbers(curves: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: the slope of accuracy in a hundred tasks, and its mean over the last ten.

    Args:
        curves: a row for each task's end, and one for each boundary, which has no score.
    """
    rows = []
    for (row, seed), run in curves.sort_values("phase").groupby(["row", "seed"]):
        scores = run.dropna(subset=SCORE)
        late = scores[scores["phase"] >= FIRST]
        slope = 100 * np.polyfit(late["phase"], late[SCORE], 1)[0]
        rows.append({"row": row, "seed": seed, "slope": slope, "last": scores[SCORE].tail(LAST).mean()})
    return pd.DataFrame(rows)


def table(curves: pd.DataFrame) -> pd.DataFrame:
    """A row for each method, the highest end first; the differences of the page are corrected together."""
    found = summarise(numbers(curves), TABLE).rename(columns={"row": "method"})
    against = {
        "vs random_isometry": f"slope vs {NAMES['random_isometry']}",
        "vs fire": f"slope vs {NAMES['fire']}",
        "vs full_reset": f"last ten vs {NAMES['full_reset']}",
    }
    return found.assign(method=found["method"].map(NAMES)).rename(columns=against)


def figure(curves: pd.DataFrame, width: str) -> Figure:
    """Accuracy at the end of each task, and the state of the network then: means over seeds and ten tasks."""
    palette = style.Palette(SHOWN)
    drawn, panels = plt.subplots(2, 2, figsize=(size_of(width), 3.8), sharex=True, layout="constrained")
    ended = curves["phase"] - curves[SCORE].isna()  # a boundary's numbers are of the task before it
    tens = curves.assign(task=ended // 10 * 10 + 5.5)
    for axes, (column, name) in zip(panels.flat, {SCORE: "Training accuracy", **STATE}.items(), strict=True):
        for row in SHOWN:
            means = tens[tens["row"] == row].dropna(subset=column).groupby("task")[column].mean()
            axes.plot(means.index, means, **palette.line(row), label=NAMES[row])
        axes.set_ylabel(name[0].upper() + name[1:])
    for axes in panels[1]:
        axes.set_xlabel("Task")
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=6)
    return drawn
