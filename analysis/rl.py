"""Aggregates over environments for reinforcement learning, after Agarwal et al. (2021), arXiv 2108.13264.

A score is one number a seed and environment; evaluation episodes are averaged before, as they are not independent runs.
rliable 1.2.0 needs arch < 8, which cannot be imported with pandas 3, and its bootstrap fails with arch 8. The formulae
are short; the point estimates equal rliable's.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analysis.arrays import Floats
from analysis.estimates import FEWEST, Estimate, widened_tail
from analysis.runs import Group, Setting

NORMALISED = "eval/normalized_return"  # human-normalised; raw returns of several environments have no common scale
RESAMPLES = 2000
Scores = Sequence[Floats]  # one array of seeds an environment; their numbers may differ


def iqm(scores: Scores) -> Floats:
    """Mean of the middle half of all scores, seeds and environments together; (..., seeds) to (...)."""
    whole = np.sort(np.concatenate(list(scores), axis=-1))
    cut = whole.shape[-1] // 4  # of 3 scores none: the mean
    middle: Floats = whole[..., cut : whole.shape[-1] - cut].mean(-1)
    return middle


def probability_of_improvement(ours: Scores, theirs: Scores) -> Floats:
    """Probability that a run of ours beats one of theirs, mean over environments; ties count half."""
    wins = []
    for x, y in zip(ours, theirs, strict=True):
        difference = x[..., :, None] - y[..., None, :]
        wins.append(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))
    return np.asarray(np.mean(wins, axis=0))


def stratified(statistic: Callable[..., Floats], *samples: Scores) -> Estimate:
    """A statistic with its 95 % percentile interval; seeds are resampled within each environment.

    The interval's tails are widened for few seeds (`estimates.widened_tail`). Fewer than five seeds have none, nor have
    resamples that all agree (each run of one method above each of the other's): they would claim certainty.

    Args:
        statistic: takes as many `Scores` as follow, or stacks of them (resamples, seeds).
        samples: scores of one or several methods.
    """
    rng = np.random.default_rng(0)
    n = min(len(x) for scores in samples for x in scores)
    if n < FEWEST:
        return Estimate(float(statistic(*samples)), np.nan, np.nan, n)
    every = [x for scores in samples for x in scores]
    sizes = [len(x) for x in every]
    drawn = np.split(rng.integers(0, np.repeat(sizes, sizes), (RESAMPLES, sum(sizes))), np.cumsum(sizes)[:-1], axis=1)
    resampled = iter([x[indices] for x, indices in zip(every, drawn, strict=True)])
    draws = statistic(*[[next(resampled) for _ in scores] for scores in samples])
    tail = widened_tail(n)
    low, high = np.quantile(draws, [tail, 1 - tail])
    if low == high:
        low = high = np.nan
    return Estimate(float(statistic(*samples)), float(low), float(high), n)


def table(settings: Sequence[Setting]) -> pd.DataFrame:
    """One row a method over the environments that all methods share: IQM, and probability of improvement over base."""
    by_method: dict[str, dict[str, Group]] = {}
    for setting in settings:
        for group in setting.groups:
            by_method.setdefault(group.key, {})[setting.name] = group
    common = [s.name for s in settings if all(s.name in groups for groups in by_method.values())]
    if not common:
        return pd.DataFrame()
    every = [run for groups in by_method.values() for name in common for run in groups[name].runs]
    key = NORMALISED if all(NORMALISED in run.history for run in every) else None
    base = by_method.get("base")
    rows = []
    for groups in by_method.values():
        group = groups[common[0]]
        row: dict[str, object] = {
            "method": group.label,
            "environments": len(common),
            "n": min(len(groups[name].runs) for name in common),
        }
        if key or len(common) == 1:
            row["IQM"] = stratified(iqm, scores(groups, common, key))
        if base and groups is not base:
            row["P(better than base)"] = stratified(
                probability_of_improvement, scores(groups, common, key), scores(base, common, key)
            )
        rows.append(row)
    return pd.DataFrame(rows)


def scores(groups: dict[str, Group], names: Sequence[str], key: str | None) -> Scores:
    finals = [np.array([run.final(key) if key else run.score() for run in groups[name].runs]) for name in names]
    return [np.where(np.isfinite(x), x, -np.inf) for x in finals]  # a run that diverged loses to all others
