"""Many seeds of one method as one curve."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Bools, Floats, Ints
from analysis.estimates import band
from analysis.runs import Group, Run, bounds_of


@dataclass(frozen=True)
class Curve:
    """Mean and standard errors over seeds; all arrays have shape (n_points,)."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    n: Ints  # seeds that reach this point
    phase: Floats
    cut: bool = False  # whether low or high would leave what the metric lies between


def curve(group: Group, metric: str, last_phase: bool = False, max_points: int = 1000) -> Curve:
    """The mean of a metric over the seeds of a group, against its horizontal axis.

    A point is the mean of the seeds that were logged there. Beyond `max_points`, points are thinned out.

    Args:
        group: the runs.
        metric: the history key.
        last_phase: the last phase alone, counted from its start.
        max_points: points drawn at most.
    """
    points = [phase_points(run, metric, group.runs[0].x) for run in group.runs]
    if last_phase:
        points = [since_boundary(p) for p in points]
    seeds = [pd.Series(p[:, 2], pd.MultiIndex.from_arrays([p[:, 0], p[:, 1]])) for p in points]
    table = pd.concat(seeds, axis=1).sort_index()  # by phase, then x
    grid, values = np.array([*table.index]).reshape(-1, 2), table.to_numpy().T
    if len(grid) > max_points:
        keep = np.unique(np.linspace(0, len(grid) - 1, max_points).astype(int))
        edges = np.flatnonzero(np.diff(grid[:, 0]))  # the last point before, the first after a boundary
        keep = np.union1d(keep, np.concatenate([edges, edges + 1]))
        grid, values = grid[keep], values[:, keep]
    n = np.isfinite(values).sum(0)
    mean = np.divide(np.nansum(values, 0), n, out=np.full(len(n), np.nan), where=n > 0)
    low, high = band(values)
    least, most = bounds_of(metric)
    cut = bool((low < least).any() or (high > most).any())
    return Curve(grid[:, 1], mean, low.clip(min=least), high.clip(max=most), n, grid[:, 0], cut)


def phase_points(run: Run, metric: str, x: str) -> Floats:
    """Rows (phase, x, value) of a run where the metric was measured, shape (n, 3).

    What was measured right after a method acted is the first point of the new phase, at the boundary.
    """
    history = run.history
    phase = history["phase"].to_numpy() if "phase" in history else np.zeros(len(history))
    out = np.column_stack([phase, history[x].to_numpy(), history[metric].to_numpy()])
    after = f"boundary/{metric.replace('/', '_')}_after"
    if after in run.boundaries and not run.is_stream:
        acted = run.boundaries.dropna(subset=[after])
        place = np.searchsorted(history["step"].to_numpy(), acted["step"].to_numpy(), side="right")
        acted, place = acted[place > 0], place[place > 0]  # what began with a boundary has no point before it
        extra = np.column_stack([acted["phase"], out[place - 1, 1], acted[after]])
        out = np.insert(out, place, extra, axis=0)
    measured: Bools = np.isfinite(out).all(1)
    return out[measured]


def since_boundary(points: Floats) -> Floats:
    """The rows of the last phase, with x counted from the end of the phase before."""
    if not len(points):  # of a run that has never had a finite value
        return points
    before, here = points[points[:, 0] < points[-1, 0]], points[points[:, 0] == points[-1, 0]]
    start = np.array([0.0, before[-1, 1] if len(before) else 0.0, 0.0])
    out: Floats = here - start
    return out


def boundaries(runs: list[Run]) -> list[float]:
    """Where a phase ends, on the horizontal axis: the last point of each phase but the last one."""
    longest = max(runs, key=lambda run: len(run.history))
    if "phase" not in longest.history or longest.is_stream:  # each point of a stream is a phase of its own
        return []
    last = longest.history.groupby("phase")[longest.x].max()
    return [float(value) for value in last.iloc[:-1]]
