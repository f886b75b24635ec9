"""Streams of texts as small tables: a row for each task of each run, and what a page says of them.

Losses are in nats a token; less is better, but for `transfer`.

    loss, last      mean training loss over the task, and over its last quarter (plasticity)
    val             held-out loss at the task's end
    before, after   held-out loss on the task before, on both sides of the boundary that begins this one (stability)
    lost            held-out loss on all earlier tasks, right after that boundary less right before
    kl              how far the method moved the function there: KL divergence on held-out tokens of the task before
    earlier         held-out loss on all earlier tasks at the task's end
    transfer        backward transfer at the task's end: below 0, earlier tasks were forgotten

Task 0 is the mixture on which a run was trained before its stream.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import streams
from analysis.boundaries import FIRING
from analysis.estimates import Estimate, holm, mean, paired
from analysis.runs import BadRun, Run
from analysis.stream_results import by_seed, methods, with_holm

ENDS = {
    "loss": "task/loss",
    "last": "train/loss",
    "val": "val/loss",
    "earlier": "stability/earlier_loss",
    "transfer": "stability/backward_transfer",
}
BOUNDARIES = {"before": "previous_loss_before", "after": "previous_loss_after", "kl": "kl"}
COLUMNS = ["method", "seed", "task", *ENDS, *BOUNDARIES, "lost"]
PLASTICITY, STABILITY = "last quarter", "earlier at the end"


def table(runs: Iterable[Run]) -> pd.DataFrame:
    """Rows of the runs of one stream, by method and seed.

    Raises:
        BadRun: a run is no stream of texts, or two have one name and seed.
    """
    parts: dict[tuple[str, int], pd.DataFrame] = {}
    for run in runs:
        if not run.is_stream or "task/loss" not in run.history:
            raise BadRun(f"{run.source}: not a stream of texts")
        if (run.method, run.seed) in parts:
            raise BadRun(f"{run.source}: there are two runs of method {run.method} with seed {run.seed}")
        parts[run.method, run.seed] = rows_of(run)
    return pd.concat([parts[key] for key in sorted(parts)], ignore_index=True)[COLUMNS]


def rows_of(run: Run) -> pd.DataFrame:
    """A row for each task of a run."""
    ends = run.history[run.history[streams.TASK].notna()]
    pretrained = int(bool((run.config.get("benchmark") or {}).get("pretrain")))
    phases = ends["phase"].to_numpy(int)
    found = pd.DataFrame({"method": run.method, "seed": run.seed, "task": phases + 1 - pretrained})
    for name, column in ENDS.items():
        found[name] = ends[column].to_numpy(float) if column in ends else np.nan
    acted = run.boundaries
    if FIRING in acted:
        acted = acted[acted[FIRING] == 0]
    acted = acted.set_index("phase") if len(acted) else acted
    for name, column in BOUNDARIES.items():
        found[name] = of_boundary(acted, column, phases)
    found["lost"] = of_boundary(acted, "earlier_loss_after", phases) - of_boundary(acted, "earlier_loss_before", phases)
    return found


def of_boundary(acted: pd.DataFrame, column: str, phases: np.ndarray) -> np.ndarray:
    """A number of the boundary that begins each of the phases; NaN where there is none."""
    name = f"boundary/{column}"
    if name not in acted:
        return np.full(len(phases), np.nan)
    return acted[name].reindex(phases).to_numpy(float)


def compare(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each method, the best on new tasks first: means with 95 % t-intervals over seeds.

    `last quarter` is the mean over tasks of the loss in the last quarter of each, `last 3` that of the last three.
    `lost`, `kl`: means over boundaries. `earlier at the end` and `transfer` are of the run's end. The last two columns
    are paired differences in `last quarter`, their p values corrected by Holm's method over the whole table.
    """
    tasks = frame[frame["task"] > 0]
    whole = {method: by_seed(tasks, method, column="last") for method in methods(tasks)}
    order = sorted(whole, key=lambda method: float(np.mean(list(whole[method].values()))))

    def over(column: str, part: slice = slice(None)) -> list[Estimate]:
        return [mean(list(by_seed(tasks, method, part, column).values())) for method in order]

    columns: dict[str, object] = {
        "method": order,
        "n": [len(whole[method]) for method in order],
        "whole task": over("loss"),
        PLASTICITY: over("last"),
        "last 3": over("last", slice(-3, None)),
        "lost": over("lost"),
        "kl": over("kl"),
        STABILITY: over("earlier", slice(-1, None)),
        "transfer": over("transfer", slice(-1, None)),
    }
    pairs = {
        reference: [None if method == reference else paired(whole[method], whole[reference]) for method in order]
        for reference in ("base", "full_reset")
        if reference in whole
    }
    corrected = iter(holm([pair.p if pair else np.nan for column in pairs.values() for pair in column]))
    for reference, column in pairs.items():
        columns[f"vs {reference}"] = [with_holm(pair, float(next(corrected))) for pair in column]
    return pd.DataFrame(columns)


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables in a folder, by name."""
    return {path.stem: pd.read_csv(path, dtype={"method": str}) for path in sorted(folder.glob("*.csv"))}
