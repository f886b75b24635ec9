"""Streams in which each phase is a new task: one point a task, and what tables say of them.

A run is such a stream if its rows have averages over the run so far: `online/accuracy`, `online/loss` of a regression,
or `online/return` of an agent. The horizontal axis of its figures is the task.
"""

import numpy as np
import pandas as pd

from analysis.arrays import Floats

TASK = "task"  # the column that numbers tasks, from 1, in the rows that end one
SHARE = 0.1  # of the tasks: the first, and the last
KEPT = "boundary/previous_accuracy_after"
ONLINE = ("online/accuracy", "online/loss", "online/return")


def is_stream(history: pd.DataFrame) -> bool:
    """Whether each phase of a run is a new task."""
    return "phase" in history and any(key in history for key in ONLINE)


def with_tasks(history: pd.DataFrame, finished: bool) -> pd.DataFrame:
    """The rows with the column `task`; the last phase of an unfinished run is no task that has ended."""
    phase = history["phase"].to_numpy()
    ends = np.append(np.diff(phase) > 0, finished)
    return history.assign(**{TASK: np.where(ends, phase + 1, np.nan)})


def values(history: pd.DataFrame, metric: str) -> Floats:
    """The metric at the end of each task, (tasks,)."""
    found: Floats = history.loc[history[TASK].notna(), metric].to_numpy(np.float64)
    return found


def numbers(history: pd.DataFrame, boundaries: pd.DataFrame, metric: str) -> dict[str, float]:
    """What a table says of a run, by column.

    all tasks: mean over tasks of the value at the end of each. first, last: the same over the first and the last tenth
    of the tasks, at least one. online: over all epochs, of the predictions before each update: the area under
    the learning curve over its length. previous task: accuracy on the task before, right after a method has
    acted at the boundary; what is missing to `base` is forgotten by the method's act.
    """
    ends = values(history, metric)
    few = max(1, round(SHARE * len(ends)))
    online = next(key for key in ONLINE if key in history)
    found = {
        "all tasks": mean(ends),
        f"first {few}": mean(ends[:few]),
        f"last {few}": mean(ends[-few:]),
        "online": float(history[online].iloc[-1]),
    }
    if KEPT in boundaries:
        found["previous task"] = float(boundaries[KEPT].mean())
    return found


def mean(part: Floats) -> float:
    """Of what is there; NaN for nothing."""
    return float(part.mean()) if len(part) else float("nan")
