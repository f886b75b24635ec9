"""Average the seeds of a method into one curve."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Bools, Floats, Ints
from analysis.estimates import band
from analysis.runs import Group, Run, bounds_of


@dataclass(frozen=True)
class Curve:
    """Mean over seeds, with a band of one standard error; all arrays have shape (n_points,)."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    n: Ints  # number of seeds that have this point
    phase: Floats
    cut: bool = False  # whether low or high was cut off at the metric's bounds


def mean_curve(group: Group, metric: str, last_phase: bool = False, max_points: int = 1000) -> Curve:
    """Return the mean of a metric over the seeds of a group, against the horizontal axis of its runs.

    A point is the mean of the seeds that have a finite value there: a seed that diverged counts as long as its values
    are finite, and `n` says how many seeds a point has. Low and high are cut at the metric's bounds. If there are too
    many points, evenly spaced ones and those at boundaries are kept.

    Args:
        group: runs that differ by their seed.
        metric: name of a column of the history.
        last_phase: whether to return only the last phase, with x counted from its start.
        max_points: about the number of evenly spaced points at most; those at boundaries come on top.

    Raises:
        KeyError: a run has no such metric.
    """
    points = [phase_points(run, metric, group.runs[0].x) for run in group.runs]
    if last_phase:
        points = [since_boundary(p) for p in points]
    seeds = [pd.Series(p[:, 2], pd.MultiIndex.from_arrays([p[:, 0], p[:, 1]])) for p in points]
    table = pd.concat(seeds, axis=1).sort_index()  # by phase, then x
    grid, values = np.array([*table.index]).reshape(-1, 2), table.to_numpy().T
    if len(grid) > max_points:
        evenly_spaced = np.unique(np.linspace(0, len(grid) - 1, max_points).astype(int))
        before_boundary = np.flatnonzero(np.diff(grid[:, 0]))
        indices = np.union1d(evenly_spaced, np.concatenate([before_boundary, before_boundary + 1]))
        grid, values = grid[indices], values[:, indices]
    n = np.isfinite(values).sum(0)
    mean = np.divide(np.nansum(values, 0), n, out=np.full(len(n), np.nan), where=n > 0)
    low, high = band(values)
    least, most = bounds_of(metric)
    cut = bool((low < least).any() or (high > most).any())
    return Curve(grid[:, 1], mean, low.clip(min=least), high.clip(max=most), n, grid[:, 0], cut)


def phase_points(run: Run, metric: str, x: str) -> Floats:
    """Return the points (phase, x, value) of a run at which the metric was measured, shape (n, 3).

    A measurement right after the method's act becomes the first point of the new phase, at the boundary.
    """
    history = run.history
    phase = history["phase"].to_numpy() if "phase" in history else np.zeros(len(history))
    points = np.column_stack([phase, history[x].to_numpy(), history[metric].to_numpy()])
    after = f"boundary/{metric.replace('/', '_')}_after"
    if after in run.boundaries and not run.is_stream:
        acted = run.boundaries.dropna(subset=[after])
        index = np.searchsorted(history["step"].to_numpy(), acted["step"].to_numpy(), side="right")
        acted, index = acted[index > 0], index[index > 0]  # a run that begins with a boundary has no point before it
        after_acts = np.column_stack([acted["phase"], points[index - 1, 1], acted[after]])
        points = np.insert(points, index, after_acts, axis=0)
    measured: Bools = np.isfinite(points).all(1)
    return points[measured]


def since_boundary(points: Floats) -> Floats:
    """Return the points (phase, x, value) of the last phase, with x counted from the end of the phase before it."""
    if not len(points):  # the run has no finite value
        return points
    earlier, last_phase = points[points[:, 0] < points[-1, 0]], points[points[:, 0] == points[-1, 0]]
    start = np.array([0.0, earlier[-1, 1] if len(earlier) else 0.0, 0.0])
    shifted: Floats = last_phase - start
    return shifted


def boundaries(runs: list[Run]) -> list[float]:
    """Return where phases end on the horizontal axis: the last x of each phase but the last; none for a stream."""
    longest = max(runs, key=lambda run: len(run.history))
    if "phase" not in longest.history or longest.is_stream:  # each point of a stream is a phase of its own
        return []
    last = longest.history.groupby("phase")[longest.x].max()
    return [float(value) for value in last.iloc[:-1]]
