"""Figure 2 in small (docs/protocol.md, studies 1 and 6): tables beside the paper's end values, and curves."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

from analysis import style
from analysis.estimates import mean, paired
from analysis.result_figures import size_of
from analysis.summary import Column, Table, by_seed, correct, summarise

# Test accuracy at the end of the warm start on CIFAR-10, read off the paper's figure 2.
PAPER = {"full_reset": 0.847, "fire": 0.829, "dash": 0.826, "parseval": 0.825, "snp": 0.803, "base": 0.778}
NAMES = style.NAMES | {"fresh": "Base, fresh start"}
TESTED = ("base", "full_reset", "snp", "dash")  # against FIRE, by the protocol
MEAN = Column("mean over phases", "ends")
PHASES = Table((MEAN, Column("last phase", "ends", "last"), Column("right after a boundary", "after")), MEAN.heading)
SHOWN = (*TESTED, "fire", "random_isometry")  # in the figure


def ends(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """A row for each method, the best first.

    Args:
        runs: a row for each run; `row` is the method.
        curves: a row for each epoch, and one for each boundary.
    """
    base = runs[runs["row"] == "base"].set_index("seed")["test/accuracy"]
    lines: list[dict[str, Any]] = []
    for method, members in runs.groupby("row"):
        here = curves[curves["row"] == method]
        acted = here.get("boundary/test_accuracy_after", pd.Series(dtype=float)).dropna().to_numpy(float)
        last = here[(here["phase"] == here["phase"].max()) & here["epoch"].notna()]
        passes = [epochs_until(last[last["seed"] == seed], base.get(seed, np.nan)) for seed in members["seed"]]
        lines.append(
            {
                "method": NAMES[str(method)],
                "n": len(members),
                "test accuracy at the end": mean(members["test/accuracy"].to_numpy(float)),
                "paper": PAPER.get(str(method), np.nan),
                "right after the boundary": f"{acted.mean():.3f}" if len(acted) else "–",
                "epochs until above base's end": "–" if method == "base" else ", ".join(map(str, passes)),
                "training accuracy at the end": f"{members['train/accuracy'].mean():.3f}",
                "seconds of the act": f"{members['act_seconds'].mean():.2f}",
            }
        )
    lines.sort(key=lambda line: -line["test accuracy at the end"].mean)
    return pd.DataFrame(lines)


def epochs_until(epochs: pd.DataFrame, level: float) -> int | str:
    """After how many epochs of a run's last phase its test accuracy is above a level first; "–" if it never is."""
    above = epochs[epochs["test/accuracy"] > level]["epoch"]
    return int(above.iloc[0] - epochs["epoch"].min()) + 1 if len(above) else "–"


def order(runs: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of each seed's order of methods with the paper's, over the methods that both have."""
    lines = []
    for seed, members in runs.groupby("seed"):
        ours = members.set_index("row")["test/accuracy"]
        both = [method for method in PAPER if method in ours]
        found = stats.spearmanr(ours[both], [PAPER[method] for method in both]).statistic
        best = " > ".join(NAMES[method] for method in sorted(both, key=lambda method: -ours[method]))
        lines.append({"seed": seed, "Spearman's correlation": f"{found:.2f}", "order": best})
    return pd.DataFrame(lines)


def against_fire(runs: pd.DataFrame) -> pd.DataFrame:
    """What FIRE ends above each tested method, paired by seed; p values corrected over them."""
    fire = by_seed(runs[runs["row"] == "fire"], column="test/accuracy")
    found: list[object] = [paired(fire, by_seed(runs[runs["row"] == row], column="test/accuracy")) for row in TESTED]
    correct([found])
    return pd.DataFrame({"FIRE against": [NAMES[row] for row in TESTED], "difference": found})


def over_phases(curves: pd.DataFrame) -> pd.DataFrame:
    """A row for each method of a panel with many phases, the best first: of each seed the mean over phases.

    Args:
        curves: a row for each epoch, and one for each boundary.
    """
    keys, after = ["row", "seed", "phase"], "boundary/test_accuracy_after"
    ends = curves.dropna(subset="epoch").sort_values("epoch").groupby(keys)["test/accuracy"].last()
    begins = curves.dropna(subset=after).groupby(keys)[after].last()
    found = pd.DataFrame({"ends": ends, "after": begins}).reset_index()
    table = summarise(found.rename(columns={"row": "method", "phase": "task"}), PHASES)
    seeds = found.pivot_table("ends", "row", "seed").map("{:.3f}".format).agg(", ".join, axis=1)
    return table.assign(seeds=table["method"].map(seeds), method=table["method"].map(NAMES))


def figure(panels: Mapping[str, pd.DataFrame], width: str) -> Figure:
    """Test accuracy over the epochs of all phases, and right after a boundary: means over seeds, thin lines: seeds.

    Args:
        panels: title -> a row for each epoch and one for each boundary.
        width: `column` or `page`.
    """
    palette = style.Palette(SHOWN)
    drawn, axes = plt.subplots(1, len(panels), figsize=(size_of(width), 2.6), sharey=True, layout="constrained")
    for (title, curves), panel in zip(panels.items(), np.atleast_1d(axes), strict=True):
        after = curves.get("boundary/test_accuracy_after", np.nan)  # not measured of a large network
        points = curves.assign(accuracy=curves["test/accuracy"].fillna(after))
        begins = points.groupby("phase")["epoch"].min() - 1  # epochs are counted through all phases
        points["at"] = points["epoch"].fillna(points["phase"].map(begins))
        for method in SHOWN:
            look = palette.line(method)
            for phase, here in points[points["row"] == method].sort_values("at").groupby("phase"):
                for _, seed in here.groupby("seed"):
                    panel.plot(seed["at"], seed["accuracy"], color=look["color"], linewidth=0.4, alpha=0.5)
                label = NAMES[method] if phase == 0 else None
                panel.plot(here.groupby("at")["accuracy"].mean(), **look, label=label)
        for boundary in begins.iloc[1:]:
            panel.axvline(boundary, color="0.7", linewidth=0.6)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_xlabel("Epoch")
        panel.set_title(title, fontsize=7)
        panel.legend(fontsize=6, ncols=2)
    np.atleast_1d(axes)[0].set_ylabel("Test accuracy")
    return drawn
