"""Means and differences with their uncertainty. The unit is the seed: one number per run, never one per episode."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, whose import takes most of a second

from analysis.arrays import Floats

CONFIDENCE = 0.95
MIN_SEEDS = 5  # for resampling; with fewer seeds its interval is hardly more than the range of the values


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds with its interval; low and high are NaN if there is none."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Paired:
    """A difference over the seeds that two methods have in common."""

    difference: Estimate
    p: float  # of a two-sided paired t test; NaN if the differences allow none
    p_holm: float = float("nan")  # corrected for all comparisons of its family


def mean(values: Sequence[float] | Floats) -> Estimate:
    """Return the mean over seeds with its 95 % interval by Student's t; NaN and inf are dropped.

    Equal values have no interval, since their agreement says nothing about other seeds. Of two values, low and high are
    the values themselves, since the interval would be nine times as wide as their distance.
    """
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x)]
    if len(x) == 0:
        return Estimate(np.nan, np.nan, np.nan, 0)
    m = float(x.mean())
    if len(x) < 2 or np.ptp(x) <= 1e-12 * np.abs(x).max():
        return Estimate(m, np.nan, np.nan, len(x))
    if len(x) == 2:
        return Estimate(m, float(x.min()), float(x.max()), 2)
    error = x.std(ddof=1) / np.sqrt(len(x))
    half = special.stdtrit(len(x) - 1, (1 + CONFIDENCE) / 2) * error
    return Estimate(m, float(m - half), float(m + half), len(x))


def paired(ours: dict[int, float], theirs: dict[int, float]) -> Paired | None:
    """Return the difference ours - theirs over common seeds, with a paired t test; None if no seed is common.

    Args:
        ours: seed -> number of one method.
        theirs: seed -> number of the other.
    """
    seeds = [s for s in sorted(ours.keys() & theirs.keys()) if np.isfinite(ours[s]) and np.isfinite(theirs[s])]
    if not seeds:
        return None
    d = np.array([ours[s] - theirs[s] for s in seeds])
    difference = mean(d)
    spread = d.std(ddof=1) if len(d) > 1 else 0.0
    if len(d) < 2 or spread <= 1e-12 * np.abs(d).max():  # one seed, or the same difference at each: no test
        return Paired(difference, np.nan)
    t = abs(d.mean()) / spread * np.sqrt(len(d))
    return Paired(difference, float(2 * special.stdtr(len(d) - 1, -t)))


def holm(p: Sequence[float]) -> Floats:
    """Return p values after Holm's step-down correction, which bounds the chance of any false claim in the family.

    Args:
        p: the family's p values, shape (m,). NaN stays NaN and does not count as a comparison.
    """
    values = np.asarray(p, dtype=float)
    corrected = np.full(values.shape, np.nan)
    finite = np.flatnonzero(np.isfinite(values))
    order = finite[np.argsort(values[finite], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def band(values: Floats) -> tuple[Floats, Floats]:
    """Return (mean - standard error, mean + standard error) over seeds, each (n_points,).

    Args:
        values: curves, (n_seeds, n_points), NaN where a seed has no value.
    """
    n = np.isfinite(values).sum(0)  # (n_points,)
    total = np.nansum(values, 0)
    centre = np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)
    square = np.nansum((values - centre) ** 2, 0)
    sem = np.sqrt(np.divide(square, n * (n - 1), out=np.zeros(len(n)), where=n > 1))
    return centre - sem, centre + sem


def widened_tail(n: int) -> float:
    """Return the probability to cut off at each end for a 95 % percentile interval of resamples of n values.

    It is less than 2.5 %: resamples of n values spread too little, by a factor of sqrt((n - 1) / n), and a normal
    distribution has shorter tails than Student's t; Hesterberg (2015), "What teachers should know about the
    bootstrap", section 5.3.
    """
    quantile = special.stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.sqrt(n / (n - 1))
    return float(special.ndtr(-quantile))
