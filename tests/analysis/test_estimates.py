"""Statistics against textbook numbers, other implementations and brute force."""

import numpy as np
import pytest
from scipy import stats

from analysis import estimates, rl


def test_t_interval_is_the_textbook_one():
    # mean 3, standard deviation sqrt(2.5), t(4, .975) = 2.776445
    got = estimates.mean([1, 2, 3, 4, 5])
    half = 2.776445105 * np.sqrt(2.5 / 5)
    assert (got.mean, got.n) == (3, 5)
    assert (got.low, got.high) == pytest.approx((3 - half, 3 + half))


def test_intervals_cover_the_mean_at_their_rate():
    rng = np.random.default_rng(0)
    hits = [e.low <= 0 <= e.high for e in (estimates.mean(rng.normal(size=5)) for _ in range(2000))]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def test_few_or_odd_values_have_no_made_up_interval():
    assert np.isnan(estimates.mean([0.5]).low)
    assert np.isnan(estimates.mean([]).mean)
    got = estimates.mean([1.0, np.nan, 3.0, np.inf])
    assert (got.mean, got.n) == (2, 2)
    assert np.isnan(estimates.mean([0.5, 0.5], "bootstrap").low)


def test_bootstrap_interval_agrees_with_t_on_many_values():
    values = np.random.default_rng(1).normal(size=400)
    one, other = estimates.mean(values), estimates.mean(values, "bootstrap")
    assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=0.01)


def test_pairs_are_formed_over_common_seeds_only():
    ours, theirs = {0: 0.5, 1: 0.6, 2: 0.8, 9: 100.0}, {2: 0.6, 1: 0.5, 0: 0.2, 7: -100.0}
    got = estimates.paired(ours, theirs)
    d = np.array([0.3, 0.1, 0.2])
    assert got.difference.n == 3
    assert got.difference.mean == pytest.approx(0.2)
    assert got.effect == pytest.approx(0.2 / 0.1)
    assert got.p == pytest.approx(stats.ttest_rel([0.5, 0.6, 0.8], [0.2, 0.5, 0.6]).pvalue)
    assert estimates.paired(ours, theirs, "wilcoxon").p == pytest.approx(stats.wilcoxon(d).pvalue)
    assert estimates.paired({0: 1.0}, {1: 1.0}) is None
    assert np.isnan(estimates.paired({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5}).p)  # no spread, no test


def test_holm_is_the_worked_example():
    # sorted: .005*4, .01*3, .03*2, .04*1, made monotone
    p = estimates.holm([0.01, 0.04, np.nan, 0.03, 0.005])
    assert p == pytest.approx([0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True)
    assert estimates.holm([0.9, 0.8]).max() == 1


@pytest.mark.parametrize("kind", ["sem", "bootstrap", "minmax"])
def test_bands_skip_missing_seeds(kind):
    values = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]] * 3)
    low, high = estimates.band(values, kind)
    assert low[1] == high[1] == 2
    assert np.isnan([low[2], high[2]]).all()
    expected = {"sem": 1 / np.sqrt(5), "minmax": 1, "bootstrap": 1}[kind]  # 1, three times, and 3: sd sqrt(6/5)
    assert (low[0], high[0]) == pytest.approx((2 - expected, 2 + expected))


def test_bootstrap_band_agrees_with_scipy():
    values = np.random.default_rng(2).normal(size=(30, 4))
    low, high = estimates.band(values, "bootstrap")
    got = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(3), axis=0)
    assert low == pytest.approx(got.confidence_interval.low, abs=0.05)
    assert high == pytest.approx(got.confidence_interval.high, abs=0.05)


def test_iqm_drops_the_outer_quarters_of_all_scores_together():
    assert rl.iqm([np.array([0.0, 1, 2, 100]), np.array([-50.0, 3, 4, 5])]) == np.mean([1, 2, 3, 4])
    for n in (3, 5, 10, 19, 20):
        x = np.random.default_rng(n).standard_normal(n)
        assert rl.iqm([x]) == pytest.approx(stats.trim_mean(x, 0.25))


def test_probability_of_improvement_counts_pairs_within_environments():
    ours, theirs = [np.array([1.0, 2]), np.array([0.0])], [np.array([1.0, 0]), np.array([5.0])]
    assert rl.probability_of_improvement(ours, theirs) == ((0.5 + 1 + 1 + 1) / 4 + 0) / 2


def test_the_stratified_interval_is_as_wide_as_that_of_a_mean():
    rng = np.random.default_rng(4)
    scores = [rng.normal(size=200), rng.normal(5, 1, size=200)]
    got = rl.stratified(lambda samples: np.mean([x.mean(-1) for x in samples], axis=0), scores)
    half = 1.96 * np.sqrt(sum(x.var() / 200 for x in scores)) / 2
    assert (got.low, got.high) == pytest.approx((got.mean - half, got.mean + half), abs=0.1 * half)


def test_the_stratified_interval_never_mixes_environments():
    constant = [np.full(5, 1.0), np.full(5, 9.0)]  # mixed, the mean would vary
    got = rl.stratified(lambda scores: np.concatenate(scores, -1).mean(-1), constant)
    assert (got.mean, got.n) == (5, 5)
    assert np.isnan([got.low, got.high]).all(), "mixed, resamples would differ"
    assert np.isnan(rl.stratified(rl.iqm, [np.array([1.0]), np.array([1.0, 2.0])]).low)
