"""Resets x optimizers (docs/protocol.md, study 9): its tables and its figure."""

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.estimates import mean, paired
from analysis.result_figures import overview
from analysis.summary import by_seed, correct

OPTIMIZERS = {"adam": "Adam", "decay": "AdamW, decay 0.1", "layer_norm": "Adam, layer norm", "muon": "Muon"}
RESETS = ("fire", "snp", "random_isometry", "full_reset", "base")
SCORE, LATE = "task_end/accuracy", "last_two"  # means over all tasks and over the last two, at the end of a task


def numbers(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs, with what resets (`method`) and what trains (`optimizer`) in columns of their own."""
    parts = runs["row"].str.extract(f"(?P<method>.+?)_(?P<optimizer>{'|'.join(OPTIMIZERS)})$")
    return pd.concat([runs, parts], axis=1)


def differences(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """FIRE minus each other row with the same optimizer, and Muon minus Adam with the same reset.

    p values are corrected over both tables.
    """
    scores = {key: by_seed(here, column=SCORE) for key, here in runs.groupby(["method", "optimizer"])}
    seeds, rivals = runs["seed"].nunique(), RESETS[1:]
    of_fire: dict[str, list[object]] = {
        name: [paired(scores["fire", key], scores[rival, key]) for rival in rivals] for key, name in OPTIMIZERS.items()
    }
    of_muon: list[object] = [paired(scores[reset, "muon"], scores[reset, "adam"]) for reset in RESETS]
    correct([*of_fire.values(), of_muon])
    resets = [style.NAMES[reset] for reset in RESETS]
    return (
        pd.DataFrame({"FIRE minus": resets[1:], "n": seeds} | of_fire),
        pd.DataFrame({"reset": resets, "n": seeds, "Muon minus Adam": of_muon}),
    )


def figure(runs: pd.DataFrame, width: str) -> Figure:
    """Each row's mean over tasks, a panel for each optimizer."""
    panels = {}
    for optimizer, name in OPTIMIZERS.items():
        here = runs[runs["optimizer"] == optimizer]
        panels[name] = [mean(here[here["method"] == reset][SCORE].to_numpy(float)) for reset in RESETS]
    words = "Training accuracy at the end of a task, mean over twenty tasks; 95 % intervals over seeds"
    return overview(panels, {reset: style.NAMES[reset] for reset in RESETS}, words, width, 1.02)
