"""A ranking over searches: both seeds and searches are a sample."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import ranking
from analysis.summary import ranks

SEARCHES, SEEDS = 5, range(101, 111)


def runs(of_search: float, of_seed: float) -> pd.DataFrame:
    """FIRE minus S&P: 0.1, and what a search and a seed add; base is far below."""
    draw = np.random.default_rng(0)
    searches, seeds = draw.standard_normal(SEARCHES), dict(zip(SEEDS, draw.standard_normal(len(SEEDS)), strict=True))
    return pd.DataFrame(
        {"setting": f"search {number}", "row": row, "seed": seed, "score": value}
        for number, search in enumerate(searches - searches.mean(), 1)
        for seed in SEEDS
        for row, value in {"fire": 0.6 + of_search * search + of_seed * seeds[seed], "snp": 0.5, "base": 0.1}.items()
    )


@pytest.mark.parametrize(("of_search", "of_seed", "sure"), [(1e-3, 1e-3, True), (1.0, 1e-3, False)])
def test_a_lead_that_searches_do_not_share_is_seen(of_search: float, of_seed: float, sure: bool) -> None:
    """Over seeds alone, given the five searches, FIRE is above S&P in both; a sixth search may give another order."""
    found = ranking.numbers(runs(of_search, of_seed), "score")
    tests = ranking.against_fire(found).set_index("FIRE minus")["difference"]
    assert (tests["S&P"].p_holm < 0.05) == sure
    ranked = ranks({str(search): here for search, here in found.groupby("search")}, crossed=True)
    fire = ranked.set_index("method").loc["fire", "mean rank"]
    assert (fire.low == fire.high == 1) == sure
    assert fire.n == SEARCHES


def test_where_one_of_both_is_all_that_differs_the_test_is_that_of_the_other_alone() -> None:
    draws = np.random.default_rng(1).standard_normal(len(SEEDS))
    found, alone = ranking.crossed(np.tile(draws[:, None], SEARCHES)), stats.ttest_1samp(draws, 0)
    assert found.p == pytest.approx(alone.pvalue)
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(alone.confidence_interval()))
