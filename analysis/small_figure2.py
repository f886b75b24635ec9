"""Figure 2 in small, panel a (docs/protocol.md, study 1): its table beside the paper's end values, and its curves."""

import textwrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

from analysis import style
from analysis.estimates import mean
from analysis.result_figures import size_of

# Test accuracy at the end of the warm start on CIFAR-10, read off the paper's figure 2.
PAPER = {"full_reset": 0.847, "fire": 0.829, "dash": 0.826, "parseval": 0.825, "snp": 0.803, "base": 0.778}
NAMES = style.NAMES | {"fresh": "Base, fresh start"}


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
                "method": NAMES.get(str(method), str(method)),
                "n": len(members),
                "test accuracy at the end": mean(members["test/accuracy"].to_numpy(float)),
                "paper": PAPER.get(str(method), np.nan),
                "right after the boundary": mean(acted) if len(acted) else None,
                "epochs until above base's end": passes if method != "base" else None,
                "training accuracy at the end": mean(members["train/accuracy"].to_numpy(float)),
                "seconds of the act": mean(members["act_seconds"].to_numpy(float)),
            }
        )
    lines.sort(key=lambda line: -line["test accuracy at the end"].mean)
    texts = [", ".join(map(str, line["epochs until above base's end"] or ["–"])) for line in lines]
    return pd.DataFrame(lines).assign(**{"epochs until above base's end": texts})


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
        if len(both) > 2:
            found = stats.spearmanr(ours[both], [PAPER[method] for method in both]).statistic
            best = " > ".join(NAMES[method] for method in sorted(both, key=lambda method: -ours[method]))
            lines.append({"seed": seed, "Spearman's correlation": f"{found:.2f}", "order": best})
    return pd.DataFrame(lines)


def figure(curves: pd.DataFrame, title: str, width: str) -> Figure:
    """Test accuracy over the epochs of all phases, and right after a boundary: means over seeds, thin lines: seeds."""
    shown = [method for method in curves["row"].unique() if method != "fresh"]
    palette = style.Palette(shown)
    drawn, axes = plt.subplots(figsize=(size_of(width), 2.6), layout="constrained")
    after = curves["boundary/test_accuracy_after"]
    points = curves.assign(accuracy=curves["test/accuracy"].fillna(after))
    begins = points.groupby("phase")["epoch"].min() - 1  # epochs are counted through all phases
    points["at"] = points["epoch"].fillna(points["phase"].map(begins))
    for method in shown:
        look = palette.line(method)
        for phase, here in points[points["row"] == method].sort_values("at").groupby("phase"):
            for _, seed in here.groupby("seed"):
                axes.plot(seed["at"], seed["accuracy"], color=look["color"], linewidth=0.4, alpha=0.5)
            label = NAMES.get(method, method) if phase == 0 else None
            axes.plot(here.groupby("at")["accuracy"].mean(), **look, label=label)
    for boundary in begins.iloc[1:]:
        axes.axvline(boundary, color="0.7", linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="Epoch", ylabel="Test accuracy")
    axes.set_title(textwrap.fill(title, 60 if width == "column" else 120), fontsize=7)
    axes.legend(fontsize=6, ncols=2)
    return drawn
