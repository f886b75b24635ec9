"""Estimates with their uncertainty. The unit is the seed: one number per run, never one per episode."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.arrays import Floats

CONFIDENCE = 0.95
RESAMPLES = 9999
FEWEST = 5  # seeds that resampling asks for: with fewer its intervals are hardly more than the range


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; low and high are NaN where n does not allow one."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Paired:
    """A difference over the seeds that two methods have in common."""

    difference: Estimate
    effect: float  # Cohen's d_z: mean difference / standard deviation of the differences
    p: float  # of a two-sided paired test; NaN where there is none
    p_holm: float = float("nan")  # corrected for all comparisons of its family


def mean(values: Sequence[float] | Floats, interval: str = "t") -> Estimate:
    """Mean over seeds with a 95 % interval; NaN and inf are dropped.

    Equal values have no interval: that seeds agree says nothing of what others would give.

    Args:
        values: one number a seed.
        interval: "t" (Student) or "bootstrap" (studentised; Efron and Tibshirani 1993, section 12.5), which asks for 5
            seeds, is wider, and covers better where values are skewed (tests/analysis/test_coverage.py).
    """
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x)]
    if len(x) == 0:
        return Estimate(np.nan, np.nan, np.nan, 0)
    m = float(x.mean())
    if len(x) < (FEWEST if interval == "bootstrap" else 2) or np.ptp(x) <= 1e-12 * np.abs(x).max():
        return Estimate(m, np.nan, np.nan, len(x))
    error = stats.sem(x)
    lower, upper = studentised(x) if interval == "bootstrap" else stats.t.interval(CONFIDENCE, len(x) - 1)
    return Estimate(m, float(m - upper * error), float(m - lower * error), len(x))


def studentised(x: Floats) -> tuple[float, float]:
    """The 2.5 and 97.5 % quantiles of (mean of a resample - mean) / standard error of the resample."""
    draws = x[np.random.default_rng(0).integers(0, len(x), (RESAMPLES, len(x)))]
    errors = stats.sem(draws, axis=1)
    some = errors > 1e-12 * np.abs(x).max()
    ratios = (draws.mean(1)[some] - x.mean()) / errors[some]
    tail = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(ratios, [tail, 1 - tail])
    return float(lower), float(upper)


def paired(ours: dict[int, float], theirs: dict[int, float], test: str = "t") -> Paired | None:
    """The difference ours - theirs over common seeds; None if there is no common seed.

    Args:
        ours: seed -> number.
        theirs: seed -> number.
        test: "t" (paired t test) or "wilcoxon" (signed ranks; with n < 6 it cannot reach p < 0.05).
    """
    seeds = [s for s in sorted(ours.keys() & theirs.keys()) if np.isfinite(ours[s]) and np.isfinite(theirs[s])]
    if not seeds:
        return None
    d = np.array([ours[s] - theirs[s] for s in seeds])
    difference = mean(d)
    spread = d.std(ddof=1) if len(d) > 1 else 0.0
    if len(d) < 2 or spread <= 1e-12 * np.abs(d).max():  # one seed, or the same difference at each: no test
        return Paired(difference, np.nan, np.nan)
    p = stats.wilcoxon(d).pvalue if test == "wilcoxon" else stats.ttest_1samp(d, 0.0).pvalue
    return Paired(difference, float(d.mean() / spread), float(p))


def holm(p: Sequence[float]) -> Floats:
    """Holm's step-down correction: bounds the chance of one false claim in the family. NaN is not counted.

    Args:
        p: the family's p values, shape (m,).
    """
    values = np.asarray(p, dtype=float)
    out = np.full(values.shape, np.nan)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return out


def band(values: Floats, kind: str) -> tuple[Floats, Floats]:
    """Lower and upper edge of a band about the mean of curves.

    Args:
        values: shape (n_seeds, n_points), NaN where a seed has no value.
        kind: "sem" (mean -+ standard error), "bootstrap" (95 % percentile interval of the mean), "minmax".
    """
    n = np.isfinite(values).sum(0)  # (n_points,)
    if kind == "minmax":
        filled = values[:, n > 0]
        low, high = np.full((2, len(n)), np.nan)
        low[n > 0], high[n > 0] = np.nanmin(filled, 0), np.nanmax(filled, 0)
        return low, high
    if kind == "bootstrap":
        return bootstrap_band(values)
    total = np.nansum(values, 0)
    centre = np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)
    square = np.nansum((values - centre) ** 2, 0)
    sem = np.sqrt(np.divide(square, n * (n - 1), out=np.zeros(len(n)), where=n > 1))
    return centre - sem, centre + sem


def widened_tail(n: int) -> float:
    """The tail of a 95 % percentile interval over n values, widened as Student's t is against the normal distribution.

    Resampling n values spreads by sqrt((n - 1) / n) too little; Hesterberg (2015), "What teachers should know about the
    bootstrap", section 5.3.
    """
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.sqrt(n / (n - 1))
    return float(stats.norm.sf(quantile))


def bootstrap_band(values: Floats, resamples: int = 1000) -> tuple[Floats, Floats]:
    """Percentile bootstrap of the mean at each point, one resampling of the seeds for the whole curve.

    As a product of counts (resamples, n_seeds) and curves it is fast enough for thousands of points.
    """
    rng = np.random.default_rng(0)
    n_seeds = len(values)
    if n_seeds < FEWEST:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    counts = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=resamples).astype(float)
    seen = counts @ np.isfinite(values)  # (resamples, n_points)
    total = counts @ np.nan_to_num(values)
    means = np.divide(total, seen, out=np.full(total.shape, np.nan), where=seen > 0)
    edges = np.full((2, values.shape[1]), np.nan)
    some = np.isfinite(means).any(0)
    tail = widened_tail(n_seeds)
    edges[:, some] = np.nanquantile(means[:, some], [tail, 1 - tail], axis=0)
    return edges[0], edges[1]
