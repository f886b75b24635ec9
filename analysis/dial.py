"""The similarity dial (docs/protocol.md, study 3): its tables and its figure."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from analysis import style
from analysis.estimates import mean, paired
from analysis.result_figures import size_of
from analysis.summary import by_seed, correct

NAMES = style.NAMES
SCORES = {"labels": "train/accuracy", "pixels": "test/accuracy"}  # at the end of a task
KEPT = "boundary/previous_accuracy_after"  # on the task before, right after the act
METRICS = {"new": "end of a task", "kept": "task before, after the act"}
SHOWN = ("base", "optimizer_reset", "full_reset", "random_isometry", "fire", "fire_half", "snp")  # in figures


def numbers(curves: pd.DataFrame, score: str) -> pd.DataFrame:
    """A row for each run: `new`, its mean score at the end of a task, and `kept`, the mean on the task before.

    Args:
        curves: a row for each task's end and one for each boundary, which has no `score`.
        score: the column of the score.
    """
    run = ["setting", "row", "seed"]
    found = curves.groupby(run, as_index=False).agg(new=(score, "mean"), kept=(KEPT, "mean"))
    return found.rename(columns={"setting": "share", "row": "method"})


def against(streams: Mapping[str, pd.DataFrame], ours: str, theirs: str) -> pd.DataFrame:
    """Differences of two methods at each share, p values corrected over the shares of a stream and metric."""
    lines = []
    for stream, runs in streams.items():
        for metric, words in METRICS.items():
            line: dict[str, object] = {"stream": stream, "metric": words, "n": runs["seed"].nunique()}
            pairs = {
                f"p = {share:g}": paired(
                    by_seed(here[here["method"] == ours], column=metric),
                    by_seed(here[here["method"] == theirs], column=metric),
                )
                for share, here in runs.groupby("share")
            }
            found: list[object] = [*pairs.values()]
            correct([found])
            lines.append(line | dict(zip(pairs, found, strict=True)))
    return pd.DataFrame(lines)


def figure(streams: Mapping[str, pd.DataFrame], width: str) -> Figure:
    """Means by share, a panel for each stream and metric; bars: 95 % intervals over seeds."""
    palette = style.Palette(SHOWN)
    size = size_of(width), 4.0
    drawn, panels = plt.subplots(2, len(streams), figsize=size, sharex=True, squeeze=False, layout="constrained")
    for column, (stream, runs) in enumerate(streams.items()):
        for axes, (metric, words) in zip(panels[:, column], METRICS.items(), strict=True):
            for method in SHOWN:
                here = runs[runs["method"] == method].groupby("share")[metric]
                estimates = {share: mean(values.to_numpy(float)) for share, values in here}
                means = np.array([estimate.mean for estimate in estimates.values()])
                ends = np.array([[estimate.low, estimate.high] for estimate in estimates.values()]).T
                axes.errorbar(
                    [*estimates], means, abs(ends - means), **palette.line(method), label=NAMES[method], capsize=1.5
                )
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(NullFormatter())
            axes.set_ylabel(f"Accuracy, {words}", fontsize=6)
        shares = sorted(runs["share"].unique())
        panels[0, column].set_title(f"Digits, {stream}", fontsize=7)
        panels[1, column].set_xticks(shares, [f"{share:g}" for share in shares])
        panels[1, column].set_xlabel(f"Share of {stream} redrawn")
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=6)
    return drawn
