"""Resets x optimizers (docs/protocol.md, studies 9 and 11): their tables and their figure."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.estimates import paired
from analysis.result_figures import draw_tasks, size_of
from analysis.summary import by_seed, correct

OPTIMIZERS = {
    "adam": "Adam",
    "decay": "AdamW, decay 0.1",
    "layer_norm": "Adam, layer norm",
    "muon": "Muon, one rate",
    "muon_two": "Muon, two rates",
}
RESETS = ("fire", "snp", "random_isometry", "full_reset", "base")
SCORE, LATE = "task_end/accuracy", "last_two"  # means over all tasks and over the last two, at the end of a task


def numbers(one: pd.DataFrame, two: pd.DataFrame) -> pd.DataFrame:
    """The runs or curves of studies 9 and 11, with what resets (`method`) and what trains (`optimizer`) in columns."""
    runs = pd.concat([one, two.assign(row=two["row"] + "_two")], ignore_index=True)
    return runs.join(runs["row"].str.extract(f"^(?P<method>.+?)_(?P<optimizer>{'|'.join(OPTIMIZERS)})$"))


def differences(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """FIRE minus each other row with the same optimizer, and other optimizers minus Adam with the same reset.

    p values are corrected over both tables; of Muon with two rates, a study of its own seeds, over its three resets.
    """
    scores = {key: by_seed(here, column=SCORE) for key, here in runs.groupby(["method", "optimizer"])}
    rivals, others = RESETS[1:], [key for key in OPTIMIZERS if key not in ("adam", "muon_two")]
    of_fire: dict[str, list[object]] = {
        name: [paired(scores["fire", key], scores[rival, key]) for rival in rivals] for key, name in OPTIMIZERS.items()
    }
    of_adam: dict[str, list[object]] = {
        OPTIMIZERS[key]: [paired(scores[reset, key], scores[reset, "adam"]) for reset in RESETS] for key in others
    }
    *three, base = of_fire.pop(OPTIMIZERS["muon_two"])
    correct([*of_fire.values(), *of_adam.values()])
    correct([three])
    of_fire[OPTIMIZERS["muon_two"]] = [*three, base]
    resets, seeds = [style.NAMES[reset] for reset in RESETS], len(scores["fire", "adam"])
    return (
        pd.DataFrame({"FIRE minus": resets[1:], "n": seeds} | of_fire),
        pd.DataFrame({"minus Adam": resets, "n": seeds} | of_adam),
    )


def figure(curves: pd.DataFrame, width: str) -> Figure:
    """Accuracy at the end of each task, a panel for each optimizer; most of base is below."""
    palette, called = style.Palette(RESETS), {reset: style.NAMES[reset] for reset in RESETS}
    ends = curves.dropna(subset="train/accuracy").assign(task=lambda rows: rows["phase"] + 1)
    rows, columns = (len(OPTIMIZERS), 1) if width == "column" else (1, len(OPTIMIZERS))
    size = size_of(width), 1 + 1.2 * rows
    drawn, panels = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, layout="constrained")
    for (optimizer, title), axes in zip(OPTIMIZERS.items(), panels, strict=True):
        draw_tasks(axes, ends[ends["optimizer"] == optimizer], "train/accuracy", called, palette)
        axes.set_title(title, fontsize=7)
    panels[0].set_ylim(0.65, 1.01)
    panels[0].set_ylabel("Training accuracy")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=6)
    return drawn
