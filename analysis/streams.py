"""Streams in which each phase is a new task: one point a task.

A run is such a stream if its rows have averages over the run so far: `online/accuracy`, `online/loss` of a regression,
or `online/return` of an agent. The horizontal axis of its figures is the task.
"""

import numpy as np
import pandas as pd

from analysis.arrays import Floats

TASK = "task"  # the column that numbers tasks, from 1, in the rows that end one
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


def mean(part: Floats) -> float:
    """Of what is there; NaN for nothing."""
    return float(part.mean()) if len(part) else float("nan")
