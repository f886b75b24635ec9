"""Aggregates over environments for reinforcement learning, after Agarwal et al. (2021), arXiv 2108.13264.

A score is one number a seed and environment; evaluation episodes are averaged before, as they are not independent runs.
rliable 1.2.0 needs arch < 8, which cannot be imported with pandas 3, and its bootstrap fails with arch 8. The formulae
are short; the point estimates equal rliable's.
"""

import json
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analysis import plotting
from analysis.arrays import Floats
from analysis.estimates import MIN_SEEDS, Estimate, widened_tail
from analysis.runs import Group, Setting

NORMALISED = "eval/normalized_return"  # raw returns of several environments have no common scale
RESAMPLES = 2000
Scores = Sequence[Floats]  # an array for each environment, (seeds,) or (resamples, seeds)


def iqm(scores: Scores) -> Floats:
    """Return the interquartile mean: the mean of the middle half of the scores of all seeds and environments.

    From arrays (..., seeds) to (...).
    """
    pooled = np.sort(np.concatenate(list(scores), axis=-1))
    cut = pooled.shape[-1] // 4  # 0 for up to 3 scores, whose plain mean is taken
    result: Floats = pooled[..., cut : pooled.shape[-1] - cut].mean(-1)
    return result


def probability_of_improvement(ours: Scores, theirs: Scores) -> Floats:
    """Return the probability that a run of ours beats one of theirs, averaged over environments; ties count half."""
    wins = []
    for x, y in zip(ours, theirs, strict=True):
        difference = x[..., :, None] - y[..., None, :]
        wins.append(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))
    return np.asarray(np.mean(wins, axis=0))


def stratified(statistic: Callable[..., Floats], *samples: Scores) -> Estimate:
    """Return a statistic with its 95 % percentile interval; seeds are resampled within each environment.

    The interval is widened for few seeds (`estimates.widened_tail`). There is none for fewer than five seeds, nor if
    all resamples agree (as when each run of one method is above each of the other's), since it would claim certainty.

    Args:
        statistic: called with as many `Scores` as `samples` has; also with stacked resamples (resamples, seeds).
        samples: scores of each method that the statistic compares.
    """
    rng = np.random.default_rng(0)
    n = min(len(x) for scores in samples for x in scores)
    if n < MIN_SEEDS:
        return Estimate(float(statistic(*samples)), np.nan, np.nan, n)
    sizes = [len(x) for scores in samples for x in scores]
    # One call draws the seeds of all environments and methods: (resamples, all seeds).
    indices = rng.integers(0, np.repeat(sizes, sizes), (RESAMPLES, sum(sizes)))
    resampled: list[list[Floats]] = []  # as `samples`, each array of (resamples, seeds)
    begin = 0
    for scores in samples:
        resampled.append([])
        for x in scores:
            resampled[-1].append(x[indices[:, begin : begin + len(x)]])
            begin += len(x)
    draws = statistic(*resampled)
    tail = widened_tail(n)
    low, high = np.quantile(draws, [tail, 1 - tail])
    if low == high:
        low = high = np.nan
    return Estimate(float(statistic(*samples)), float(low), float(high), n)


def table(settings: Sequence[Setting]) -> pd.DataFrame:
    """Return a table with a row for each method: IQM, and probability of improvement over base.

    Only environments in which all methods ran count. Of several settings of one environment, such as two learning
    rates, the one with most runs counts; the column `shown` names it.
    """
    by_environment: dict[str, list[Setting]] = {}
    for setting in settings:
        by_environment.setdefault(environment_of(setting), []).append(setting)
    fitting = [sorted(members, key=lambda setting: -len(setting.runs)) for members in by_environment.values()]
    by_method: dict[str, dict[str, Group]] = {}
    for members in fitting:
        for group in members[0].groups:
            by_method.setdefault(group.key, {})[members[0].name] = group
    common = [m[0].name for m in fitting if all(m[0].name in groups for groups in by_method.values())]
    runs = [run for groups in by_method.values() for name in common for run in groups[name].runs]
    key = NORMALISED if all(NORMALISED in run.history for run in runs) else None
    common = [n for n in common if all(len(scores(groups, [n], key)[0]) for groups in by_method.values())]
    if not common:
        return pd.DataFrame()
    bases = [groups for groups in by_method.values() if groups[common[0]].method == "base"]
    base = bases[0] if len(bases) == 1 else None
    shown = plotting.chosen_text([members for members in fitting if members[0].name in common])
    rows = []
    for groups in by_method.values():
        group = groups[common[0]]
        variants = {run.variant for name in common for run in groups[name].runs}
        row: dict[str, object] = {
            "method": group.label + (" (other options in each environment)" if len(variants) > 1 else ""),
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
    frame = pd.DataFrame(rows)
    return frame.assign(shown=shown) if shown else frame


def environment_of(setting: Setting) -> str:
    """Return a text that settings share if they have the same environment, or the same stream of environments.

    A preset may hold another environment than its own (`env=cartpole env.game=Acrobot-v1`).
    """
    config = setting.runs[0].config
    env, benchmark = (node if isinstance(node, dict) else {} for node in (config.get("env"), config.get("benchmark")))
    names = (setting.benchmark, setting.dataset, env.get("game"), env.get("task"), benchmark.get("sequence"))
    return json.dumps(names, default=str)


def scores(groups: dict[str, Group], names: Sequence[str], key: str | None) -> Scores:
    """Return the scores of a method in each environment; -inf for a run that diverged, which loses to all others.

    A run without a number, such as an agent none of whose episodes has ended, is left out.

    Args:
        groups: name of the environment's setting -> the method's runs.
        names: the settings to return, in order.
        key: the metric; None: each run's own score.
    """
    numbers = [np.array([run.score(key) for run in groups[name].runs]) for name in names]
    return [np.where(np.isinf(x), -np.inf, x)[~np.isnan(x)] for x in numbers]
