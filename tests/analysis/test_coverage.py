"""How often do 95 % intervals hold the truth? By simulation, on skewed data (gamma of shape 4: skewness 1).

    seeds   t       studentised bootstrap   IQM, widened percentiles
    5       0.93    0.94                    0.93
    10      0.94    0.95                    0.96
    20      0.94    0.94                    0.96

On far more skewed data (exponential: skewness 2) the t interval holds it in 0.88, 0.90 and 0.92 of the cases, the
bootstrap in 0.92, 0.93 and 0.95: take `--interval bootstrap` there. Differences between methods over the same seeds,
which the tables test, are closer to symmetric than either.
"""

import numpy as np
import pytest

from analysis import estimates, rl

SIMULATIONS = {"t": 4000, "bootstrap": 600, "iqm": 200}


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10, 20])
@pytest.mark.parametrize("kind", SIMULATIONS)
def test_intervals_hold_the_truth_at_their_rate(n: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "RESAMPLES", 999)
    monkeypatch.setattr(rl, "RESAMPLES", 500)
    rng = np.random.default_rng(n)
    truth = 4.0 if kind != "iqm" else rl.iqm([rng.gamma(4, size=1_000_000)])
    hits = []
    for _ in range(SIMULATIONS[kind]):
        x = rng.gamma(4, size=n)
        found = rl.stratified(rl.iqm, [x]) if kind == "iqm" else estimates.mean(x, kind)
        hits.append(found.low <= truth <= found.high)
    noise = 2 * np.sqrt(0.95 * 0.05 / SIMULATIONS[kind])
    assert 0.92 - noise < np.mean(hits) < 0.97 + noise


def test_few_seeds_have_no_resampled_interval_and_agreement_is_no_certainty() -> None:
    few, many = [np.arange(4.0)], [np.arange(5.0)]
    assert np.isnan(estimates.mean(few[0], "bootstrap").low)
    assert np.isnan(rl.stratified(rl.iqm, few).low)
    assert np.isfinite(rl.stratified(rl.iqm, many).low)
    assert np.isnan(rl.stratified(rl.probability_of_improvement, many, [many[0] + 10]).low), "0 [0, 0] claims certainty"
    assert np.isnan(estimates.mean([0.0] * 20).low)
    assert np.isnan(estimates.band(np.arange(8.0).reshape(4, 2), "bootstrap")[0]).all()
