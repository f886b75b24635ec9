"""Streams, in which each phase is a new task: a figure shows one point for each task.

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
    """Return whether each phase of a run is a new task."""
    return "phase" in history and any(key in history for key in ONLINE)


def with_tasks(history: pd.DataFrame, finished: bool) -> pd.DataFrame:
    """Return the rows with the column `task`: the task's number in the last row of each ended task, NaN in others.

    The last phase of an unfinished run has not ended.
    """
    phase = history["phase"].to_numpy()
    ends = np.append(np.diff(phase) > 0, finished)
    return history.assign(**{TASK: np.where(ends, phase + 1, np.nan)})


def values(history: pd.DataFrame, metric: str) -> Floats:
    """Return the metric at the end of each task, (tasks,)."""
    at_ends: Floats = history.loc[history[TASK].notna(), metric].to_numpy(np.float64)
    return at_ends


def mean(part: Floats) -> float:
    """Return the mean of an array, or NaN if it is empty."""
    return float(part.mean()) if len(part) else float("nan")
