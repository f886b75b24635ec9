"""What is kept of runs on streams of tasks: small csv files with a row for each task of each run.

Of a stream of labels, images or numbers: `value` at the end of the task (accuracy, or loss of a regression), `online`,
its average over all epochs so far, and `kept`, the accuracy on the task before, right after the boundary. Where phases
are no tasks (warm start), each phase after the first is one: `online` is the mean of the metric over its epochs, and
`kept` the test accuracy right after the boundary.

Of a stream of texts, losses in nats a token, less is better; task 0 is the mixture on which a run was trained before
its stream:

    loss, last      mean training loss over the task, and over its last quarter (plasticity)
    before, after   held-out loss on the task before, on both sides of the boundary that begins this one (stability)
    lost            held-out loss on all earlier tasks, right after that boundary less right before
    kl              how far the method moved the function there: KL divergence on held-out tokens of the task before
    earlier         held-out loss on all earlier tasks at the task's end

Configurations are not kept: all runs of a stream are alike but for the method's options and the learning rate, which is
checked; the options are in conf/tuned/searched and in the table of the search.
"""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis import streams
from analysis.arrays import Floats
from analysis.boundaries import FIRING
from analysis.runs import BadRun, Run, method_groups

COLUMNS = ["method", "seed", "task", "value", "online", "kept"]
AFTER = "boundary/test_accuracy_after"
TEXT_ENDS = {"loss": "task/loss", "last": "train/loss", "earlier": "stability/earlier_loss"}
TEXT_BOUNDARIES = {"before": "previous_loss_before", "after": "previous_loss_after", "kl": "kl"}
TEXT_COLUMNS = ["method", "seed", "task", *TEXT_ENDS, *TEXT_BOUNDARIES, "lost"]


def name_of(run: Run) -> str:
    """A stream's name, of its files and in conf/tuned/searched."""
    return f"{run.benchmark}_{run.dataset}"


def of_streams(runs: Iterable[Run]) -> dict[str, pd.DataFrame]:
    """The rows of each stream, by its name; several variants of a method are named by what distinguishes them.

    Raises:
        BadRun: runs of a stream differ in more than the method and its learning rate.
    """
    by_stream: dict[str, list[Run]] = {}
    for run in runs:
        if run.is_stream or run.domain == "vision":
            by_stream.setdefault(name_of(run), []).append(run)
    tables = {}
    for name, members in sorted(by_stream.items()):
        if len({alike(run) for run in members}) > 1:
            raise BadRun(f"{name}: runs differ in more than the method and the learning rate; give each its own folder")
        parts = []
        for group in method_groups(members):
            for run in group.runs:
                rows = of_tasks(run) if run.is_stream else of_phases(run)
                parts.append(rows.assign(method=group.key, seed=run.seed))
        tables[name] = pd.concat(parts, ignore_index=True)[COLUMNS]
    return tables


def alike(run: Run) -> str:
    """The setting less the learning rate, which is tuned for each method."""
    metric, rest = json.loads(run.setting)
    rest.pop("lr", None)
    rest["optimizer"] = {key: value for key, value in (rest.get("optimizer") or {}).items() if key != "lr"}
    return json.dumps([metric, rest], sort_keys=True)


def of_tasks(run: Run) -> pd.DataFrame:
    """A row for each task of a stream; of agents with the return of evaluations."""
    ends = run.history[run.history[streams.TASK].notna()]
    online = next(key for key in streams.ONLINE if key in ends)
    columns = {"value": run.metric, "online": online}
    if run.metric == "task/return":
        columns["evaluation"] = "eval/return"
    found = pd.DataFrame({name: ends[key] for name, key in columns.items() if key in ends})
    return found.assign(task=ends[streams.TASK].astype(int), kept=of_boundaries(run, streams.KEPT, ends["phase"]))


def of_phases(run: Run) -> pd.DataFrame:
    """The same of a run whose phases after the first are taken for tasks."""
    later = run.history[run.history["phase"] > 0].groupby("phase")[run.metric]
    phases = later.last().index
    found = pd.DataFrame({"task": phases, "value": later.last().to_numpy(), "online": later.mean().to_numpy()})
    return found.assign(kept=of_boundaries(run, AFTER, phases))


def of_boundaries(run: Run, column: str, phases: Iterable[Any]) -> Floats:
    """A number of the boundary that begins each of the phases; NaN where there is none."""
    acted = run.boundaries
    if FIRING in acted:
        acted = acted[acted[FIRING] == 0]
    if column not in acted:
        return np.full(len([*phases]), np.nan)
    found: Floats = acted.set_index("phase")[column].reindex([*phases]).to_numpy(float)
    return found


def of_texts(runs: Iterable[Run]) -> pd.DataFrame:
    """Rows of the runs of one stream of texts, by method and seed.

    Raises:
        BadRun: a run is no stream of texts, or two have one name and seed.
    """
    parts: dict[tuple[str, int], pd.DataFrame] = {}
    for run in runs:
        if not run.is_stream or "task/loss" not in run.history:
            raise BadRun(f"{run.source}: not a stream of texts")
        if (run.method, run.seed) in parts:
            raise BadRun(f"{run.source}: there are two runs of method {run.method} with seed {run.seed}")
        parts[run.method, run.seed] = rows_of_text(run)
    return pd.concat([parts[key] for key in sorted(parts)], ignore_index=True)[TEXT_COLUMNS]


def rows_of_text(run: Run) -> pd.DataFrame:
    """A row for each task of a run."""
    ends = run.history[run.history[streams.TASK].notna()]
    pretrained = int(bool((run.config.get("benchmark") or {}).get("pretrain")))
    phases = ends["phase"].to_numpy(int)
    found = pd.DataFrame({"method": run.method, "seed": run.seed, "task": phases + 1 - pretrained})
    for name, column in TEXT_ENDS.items():
        found[name] = ends[column].to_numpy(float) if column in ends else np.nan
    for name, column in TEXT_BOUNDARIES.items():
        found[name] = of_boundaries(run, f"boundary/{column}", phases)
    before, after = (of_boundaries(run, f"boundary/earlier_loss_{side}", phases) for side in ("before", "after"))
    return found.assign(lost=after - before)
