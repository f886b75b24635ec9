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

    The last phase of an unfinished run has not ended. Phases before the first task, in which a language model is
    trained on a mixture of all texts, are none.
    """
    phase, first = history["phase"].to_numpy(), first_task(history)
    ends = np.append(np.diff(phase) > 0, finished) & (phase >= first)
    return history.assign(**{TASK: np.where(ends, phase - first + 1, np.nan)})


def first_task(history: pd.DataFrame) -> float:
    """Return the number of the first phase that is a task: rows of phases before it have no averages over the tasks."""
    averages = [key for key in ("online/accuracy", "online/loss") if key in history]
    if not averages:  # an agent's tasks are all its phases, and a row has no average until an episode has ended
        return 0
    has_average = history[averages].notna().any(axis=1)
    return float(history.loc[has_average, "phase"].iloc[0]) if has_average.any() else 0


def values(history: pd.DataFrame, metric: str) -> Floats:
    """Return the metric at the end of each task, (tasks,)."""
    at_ends: Floats = history.loc[history[TASK].notna(), metric].to_numpy(np.float64)
    return at_ends


def mean(part: Floats) -> float:
    """Return the mean of an array, or NaN if it is empty."""
    return float(part.mean()) if len(part) else float("nan")
