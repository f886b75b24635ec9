"""Judge the comparisons of a study: better, equivalent, worse or undecided, by the same rule in all studies.

The unit is the seed. Two rows of a study are compared by their difference on each seed that both have. A study freezes
a *family* of comparisons; Holm's correction is over the family. With `smallest`, the smallest difference that matters:

    equivalent   two one-sided tests (Schuirmann 1987) both reject a difference as large as `smallest`
    better       not equivalent, and the test against no difference is significant, for the row
    worse        not equivalent, and the test against no difference is significant, against the row
    undecided    none of these, so the seeds have shown neither a difference nor equivalence

A difference that is significant and too small to matter is therefore `equivalent`. Where no smallest difference is
known, nothing can be equivalent.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from analysis.estimates import holm

LEVEL = 0.05
SMALLEST_ACCURACY = 0.01
SMALLEST_SHARE_OF_GAP = 0.1
EXACT_UP_TO = 14  # seeds, which have 2^14 = 16,384 ways to flip their signs
RANDOM_FLIPS = 20_000  # number of random sign flips with more seeds
Floats = NDArray[np.float64]
Test = Literal["t", "permutation"]
Outcome = Literal["better", "equivalent", "worse", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """One row minus another, over the seeds that both have.

    Attributes:
        effect: mean difference; positive is better for the first row.
        low, high: 95 % interval of the effect, not corrected.
        seeds: number of seeds.
        p_difference: p value of the two-sided test against no difference, corrected over the family.
        p_equivalence: the larger p value of the two one-sided tests, corrected over the family; NaN without `smallest`.
        outcome: better, equivalent, worse or undecided.
    """

    effect: float
    low: float
    high: float
    seeds: int
    p_difference: float
    p_equivalence: float
    outcome: Outcome


def judge(
    family: Mapping[str, Sequence[float]], smallest: float | None, test: Test = "t", level: float = LEVEL
) -> dict[str, Comparison]:
    """Judge a family of comparisons.

    Args:
        family: name -> differences of at least two seeds; positive is better for the first row.
        smallest: the smallest difference that matters, above 0, in the unit of the differences; None if it is not
            known, so that nothing is equivalent.
        test: `t`, or `permutation` where returns have two peaks (sign flips, exact up to 14 seeds).
        level: significance level of each corrected test.

    Raises:
        ValueError: a comparison has fewer than two seeds or a number that is not finite, or `smallest` is not above 0.
    """
    if smallest is not None and not smallest > 0:
        raise ValueError(f"the smallest difference that matters must be above 0, got {smallest}")
    differences = {name: np.asarray(values, np.float64) for name, values in family.items()}
    for name, values in differences.items():
        if len(values) < 2 or not np.isfinite(values).all():
            raise ValueError(f"{name}: a comparison needs finite differences of two seeds or more, got {values}")
    tests = {name: TESTS[test](values) for name, values in differences.items()}
    p_differences = holm([two_sided_p(tested) for tested in tests.values()])
    p_equivalences = holm([equivalence_p(tested, smallest) for tested in tests.values()])
    comparisons = {}
    for (name, tested), p_difference, p_equivalence in zip(tests.items(), p_differences, p_equivalences, strict=True):
        outcome: Outcome = "undecided"
        if p_equivalence < level:
            outcome = "equivalent"
        elif p_difference < level:
            outcome = "better" if tested.mean > 0 else "worse"
        low, high = tested.interval()
        seeds = len(differences[name])
        comparisons[name] = Comparison(
            tested.mean, low, high, seeds, float(p_difference), float(p_equivalence), outcome
        )
    return comparisons


def smallest_that_matters(fixed: float | None, gap: float) -> float:
    """Return the smallest difference that matters.

    Args:
        fixed: the measure's own (`SMALLEST_ACCURACY` of an accuracy), which is returned; None: a tenth of the gap.
        gap: mean of the row `fresh` minus mean of `base`, in the direction in which more is better.
    """
    return SMALLEST_SHARE_OF_GAP * gap if fixed is None else fixed


def shows_loss(gaps: Sequence[float], fixed: float | None) -> bool:
    """Return whether a stream shows a loss of plasticity: whether a new network is better than the old one.

    The 95 % interval of the mean gap must lie above 0.

    Args:
        gaps: `fresh` minus `base` on each of two or more seeds, in the direction in which more is better.
        fixed: the smallest difference that matters, which the mean gap must reach, too; None if it depends on the gap.
    """
    values = np.asarray(gaps, np.float64)
    return bool(TTest(values).interval()[0] > 0 and (fixed is None or values.mean() >= fixed))


def power(effect: float, spread: float, seeds: int, comparisons: int = 1, level: float = LEVEL) -> float:
    """Return the probability that a two-sided paired t test is significant if the effect has this size.

    It is NaN for a spread of 0: the test rejects nothing where all differences are equal.

    Args:
        effect: true mean difference.
        spread: standard deviation of the differences over seeds.
        seeds: number of seeds, at least 2.
        comparisons: comparisons in the family. The test is at `level` / comparisons, Holm's first and hardest step.
        level: significance level of the family.
    """
    if spread == 0:
        return math.nan
    freedom = seeds - 1
    threshold = stats.t.isf(level / comparisons / 2, freedom)
    shift = abs(effect) / spread * math.sqrt(seeds)
    wrong_side = np.nan_to_num(stats.nct.cdf(-threshold, freedom, shift))  # SciPy gives NaN for some tiny values
    return float(stats.nct.sf(threshold, freedom, shift) + wrong_side)


def pooled_spread(differences: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of paired differences over seeds, pooled over comparisons with few seeds each.

    Args:
        differences: for each comparison its differences, of at least two seeds in one of them.
    """
    arrays = [np.asarray(values, np.float64) for values in differences]
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in arrays)
    freedom = sum(len(values) - 1 for values in arrays)
    return math.sqrt(squares / freedom)


class TTest:
    """Paired t tests of differences by seed, (n,).

    Differences that are all equal say nothing about other seeds: they reject nothing.
    """

    def __init__(self, differences: Floats) -> None:
        self.mean = float(differences.mean())
        self.freedom = len(differences) - 1
        equal = np.ptp(differences) <= 1e-12 * np.abs(differences).max()  # but for rounding
        self.error = 0.0 if equal else float(differences.std(ddof=1)) / math.sqrt(len(differences))

    def above(self, bound: float) -> float:
        """Return the p value against a true difference of `bound` or less."""
        if self.error == 0:
            return 1.0
        return float(special.stdtr(self.freedom, -(self.mean - bound) / self.error))

    def below(self, bound: float) -> float:
        """Return the p value against a true difference of `bound` or more."""
        if self.error == 0:
            return 1.0
        return float(special.stdtr(self.freedom, (self.mean - bound) / self.error))

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the true difference."""
        if self.error == 0:
            return -math.inf, math.inf
        half = float(special.stdtrit(self.freedom, 1 - LEVEL / 2)) * self.error
        return self.mean - half, self.mean + half


class SignFlipTest:
    """Permutation tests of differences by seed, (n,): under the null, each difference's sign is as likely as the other.

    With more than `EXACT_UP_TO` seeds the flips are drawn at random, always the same ones, and the data's own signs
    count as one of them.
    """

    def __init__(self, differences: Floats) -> None:
        self.differences, seeds = differences, len(differences)
        self.mean = float(differences.mean())
        self.signs: Floats  # (flips, seeds), each 1 or -1
        if seeds <= EXACT_UP_TO:
            self.signs = np.array(list(itertools.product((1.0, -1.0), repeat=seeds)))
        else:
            drawn = np.random.default_rng(0).choice([1.0, -1.0], (RANDOM_FLIPS, seeds))
            self.signs = np.concatenate([np.ones((1, seeds)), drawn])

    def above(self, bound: float) -> float:
        """Return the p value against a true difference of `bound` or less."""
        shifted = self.differences - bound
        flipped = self.signs @ shifted  # (flips,), sums
        return float((flipped >= shifted.sum() - 1e-12 * np.abs(shifted).sum()).mean())

    def below(self, bound: float) -> float:
        """Return the p value against a true difference of `bound` or more."""
        return SignFlipTest(-self.differences).above(-bound)

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval: the true differences that neither one-sided test rejects at 2.5 %."""
        width = float(np.ptp(self.differences)) + abs(self.mean) + 1e-12
        far_below, far_above = self.mean - 2 * width, self.mean + 2 * width
        if self.above(far_below) > LEVEL / 2:  # too few seeds to reject anything
            return -math.inf, math.inf
        low = optimize.bisect(lambda bound: self.above(bound) - LEVEL / 2, far_below, self.mean, xtol=1e-6 * width)
        high = optimize.bisect(lambda bound: self.below(bound) - LEVEL / 2, self.mean, far_above, xtol=1e-6 * width)
        return float(low), float(high)


TESTS: dict[Test, type[TTest] | type[SignFlipTest]] = {"t": TTest, "permutation": SignFlipTest}


def two_sided_p(tested: TTest | SignFlipTest) -> float:
    """Return the two-sided p value against no difference."""
    return min(1.0, 2 * min(tested.above(0.0), tested.below(0.0)))


def equivalence_p(tested: TTest | SignFlipTest, smallest: float | None) -> float:
    """Return the larger p value of the two one-sided tests against a difference of `smallest`; NaN if it is None."""
    return math.nan if smallest is None else max(tested.above(-smallest), tested.below(smallest))
