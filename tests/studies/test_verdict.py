"""The rule of verdict, against examples worked by hand and against SciPy's own tests."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.estimates import paired
from studies.verdict import SignFlipTest, judge, pooled_spread, power, shows_loss, smallest_that_matters

# Mean 0.03, standard deviation 0.01, five seeds: standard error 0.004472, t = 6.708 with four degrees of freedom.
CLEAR = [0.02, 0.02, 0.03, 0.04, 0.04]


def test_a_difference_by_hand() -> None:
    (verdict,) = judge({"half minus FIRE": CLEAR}, smallest=0.01).values()
    assert verdict.effect == pytest.approx(0.03)
    assert verdict.p_difference == pytest.approx(0.00257, abs=2e-5)  # table of t: 2 P(T > 6.708), 4 degrees of freedom
    half_width = 2.776 * 0.004472  # the 97.5 % point of t with four degrees of freedom
    assert (verdict.low, verdict.high) == pytest.approx((0.03 - half_width, 0.03 + half_width), abs=1e-5)
    assert (verdict.outcome, verdict.seeds) == ("better", 5)


def test_the_four_outcomes() -> None:
    tiny = [value / 100 for value in CLEAR]  # significant, and far below what matters
    wide = [0.3, -0.3, 0.2, -0.25, 0.1]
    assert judge({"row": CLEAR}, 0.01)["row"].outcome == "better"
    assert judge({"row": [-value for value in CLEAR]}, 0.01)["row"].outcome == "worse"
    assert judge({"row": wide}, 0.01)["row"].outcome == "undecided"
    verdict = judge({"row": tiny}, 0.01)["row"]
    assert verdict.p_difference < 0.05
    assert verdict.outcome == "equivalent"


def test_without_a_smallest_difference_nothing_is_equivalent() -> None:
    known, unknown = (judge({"row": [value / 100 for value in CLEAR]}, smallest)["row"] for smallest in (0.01, None))
    assert (known.outcome, unknown.outcome) == ("equivalent", "better")
    assert unknown.p_difference == known.p_difference
    assert math.isnan(unknown.p_equivalence)


def test_t_tests_are_scipy_s() -> None:
    values = np.random.default_rng(1).normal(0.01, 0.05, 12)
    verdict = judge({"row": values.tolist()}, 0.03)["row"]
    assert verdict.p_difference == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    sides = [
        stats.ttest_1samp(values, -0.03, alternative="greater").pvalue,
        stats.ttest_1samp(values, 0.03, alternative="less").pvalue,
    ]
    assert verdict.p_equivalence == pytest.approx(max(sides))
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high))


def test_holm_is_over_the_family() -> None:
    """By hand: raw p values p1 < p2 of two comparisons become 2 p1 and max(2 p1, p2)."""
    other = [0.03, -0.01, 0.02, 0.04, 0.01]
    alone = [judge({"row": values}, 0.01)["row"].p_difference for values in (CLEAR, other)]
    together = [verdict.p_difference for verdict in judge({"first": CLEAR, "second": other}, 0.01).values()]
    assert alone[0] < alone[1]
    assert together == pytest.approx([2 * alone[0], max(2 * alone[0], alone[1])])


def test_sign_flips_by_hand() -> None:
    """Five differences above zero: of 32 ways to flip signs one gives a sum as large, so p is 1/32 on one side."""
    assert SignFlipTest(np.array(CLEAR)).above(0.0) == 1 / 32
    assert SignFlipTest(np.array(CLEAR)).below(0.0) == 1.0
    # 3, 2 and -1: the eight flips sum to 6, 4, 2, 0, 0, -2, -4 and -6; two of them reach the data's own sum, 4.
    assert SignFlipTest(np.array([3.0, 2.0, -1.0])).above(0.0) == 2 / 8
    verdict = judge({"row": CLEAR}, 0.01, test="permutation")["row"]
    assert verdict.p_difference == 2 / 32
    assert verdict.outcome == "undecided", "five seeds cannot be significant by flips alone"


def test_sign_flips_agree_with_scipy_and_with_t_where_data_are_normal() -> None:
    values = np.random.default_rng(3).normal(0.5, 1.0, 12)
    truth = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="greater"
    )
    ours = SignFlipTest(values)
    assert ours.above(0.0) == pytest.approx(truth.pvalue)
    many = np.random.default_rng(4).normal(0.5, 1.0, 60)
    by_t, by_flips = (judge({"row": many.tolist()}, 0.2, test=test)["row"] for test in ("t", "permutation"))
    assert by_flips.low == pytest.approx(by_t.low, abs=0.02)
    assert by_flips.high == pytest.approx(by_t.high, abs=0.02)
    assert judge({"row": many.tolist()}, 0.2, test="permutation")["row"] == by_flips, "the same draws each time"


def test_two_seeds_reject_nothing_by_flips() -> None:
    assert SignFlipTest(np.array([1.0, 1.1])).interval() == (-math.inf, math.inf)


@pytest.mark.parametrize("difference", [0.5, 0.1, 0.0])
def test_equal_differences_decide_nothing_as_in_other_tables(difference: float) -> None:
    judged = judge({"row": [difference] * 3}, 0.1)["row"]
    assert (judged.outcome, judged.p_difference, judged.low, judged.high) == ("undecided", 1.0, -math.inf, math.inf)
    pair = paired(dict.fromkeys(range(3), difference), dict.fromkeys(range(3), 0.0))
    assert pair is not None
    assert math.isnan(pair.p)


@pytest.mark.parametrize(("values", "smallest"), [([0.1], 0.01), ([0.1, math.nan], 0.01), ([0.1, 0.2], 0.0)])
def test_what_cannot_be_judged_is_refused(values: list[float], smallest: float) -> None:
    with pytest.raises(ValueError, match=r"two seeds|above 0"):
        judge({"row": values}, smallest)


def test_power_by_simulation() -> None:
    generator = np.random.default_rng(0)
    found = stats.ttest_1samp(generator.normal(0.02, 0.02, (20_000, 10)), 0, axis=1).pvalue < 0.05 / 4
    assert power(0.02, 0.02, 10, comparisons=4) == pytest.approx(found.mean(), abs=0.01)
    assert math.isnan(power(0.02, 0.0, 3)), "where all differences are equal, the test rejects nothing"
    assert power(0.02, 0.00655, 10, 18) == pytest.approx(0.99996, abs=1e-5), "SciPy has NaN for one of its two terms"


def test_pooled_spread_by_hand() -> None:
    """Pairs 1 and 3 (squares 2) and 0 and 4 (squares 8), one degree of freedom each: variance 10 / 2."""
    assert pooled_spread([[1.0, 3.0], [0.0, 4.0]]) == pytest.approx(math.sqrt(5))


def test_what_matters_and_where_a_loss_is_shown() -> None:
    assert smallest_that_matters(0.01, gap=0.5) == 0.01
    assert smallest_that_matters(None, gap=150.0) == pytest.approx(15.0)
    assert shows_loss([0.011, 0.009, 0.012], fixed=0.01)
    assert not shows_loss([0.004, 0.002, 0.009], fixed=0.01)
    assert not shows_loss([0.05, -0.05, 0.03, -0.01, 0.04], fixed=0.01), "mean 0.012, interval -0.038 to 0.062"
    assert shows_loss([100.0, 120.0, 110.0], fixed=None)
    assert not shows_loss([100.0, -120.0, 110.0], fixed=None)
