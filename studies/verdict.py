"""The rule by which every study judges a comparison: better, equivalent, worse or undecided.

The unit is the seed. Two rows of a study are compared by their difference on each seed that both have. A study freezes
a *family* of comparisons; Holm's correction is over the family. With `smallest`, the smallest difference that matters:

    equivalent   two one-sided tests (Schuirmann 1987) both reject a difference as large as `smallest`
    better       not equivalent, and the test against no difference is significant, for the row
    worse        the same, against the row
    undecided    none of these: "not shown" is no loss

A difference that is significant and too small to matter is therefore `equivalent`.
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
EXACT_UP_TO = 14  # seeds; 2^14 = 16,384 ways to flip the signs
RANDOM_FLIPS = 20_000  # with more seeds
Floats = NDArray[np.float64]
Test = Literal["t", "permutation"]
Outcome = Literal["better", "equivalent", "worse", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """One row minus another, over the seeds that both have.

    Attributes:
        effect: mean difference; positive is better for the first row.
        low, high: 95 % interval of the effect, not corrected.
        seeds: how many.
        p_difference: of the two-sided test against no difference, corrected over the family.
        p_equivalence: of the two one-sided tests, the larger, corrected over the family.
        outcome: by the rule of this module.
    """

    effect: float
    low: float
    high: float
    seeds: int
    p_difference: float
    p_equivalence: float
    outcome: Outcome


def judge(
    family: Mapping[str, Sequence[float]], smallest: float, test: Test = "t", level: float = LEVEL
) -> dict[str, Comparison]:
    """Judge a family of comparisons.

    Args:
        family: name -> differences by seed, of at least two seeds; positive is better for the row in question.
        smallest: the smallest difference that matters, above 0, in the unit of the differences.
        test: `t`, or `permutation` where returns have two peaks (sign flips, exact up to 14 seeds).
        level: of each corrected test.

    Raises:
        ValueError: a comparison has fewer than two seeds or a number that is not finite, or `smallest` is not above 0.
    """
    if not smallest > 0:
        raise ValueError(f"the smallest difference that matters must be above 0, got {smallest}")
    differences = {name: np.asarray(values, np.float64) for name, values in family.items()}
    for name, values in differences.items():
        if len(values) < 2 or not np.isfinite(values).all():
            raise ValueError(f"{name}: a comparison needs finite differences of two seeds or more, got {values}")
    tests = {name: TESTS[test](values) for name, values in differences.items()}
    against_none = holm([either_side(tested) for tested in tests.values()])
    against_large = holm([max(tested.above(-smallest), tested.below(smallest)) for tested in tests.values()])
    comparisons = {}
    for (name, tested), p_difference, p_equivalence in zip(tests.items(), against_none, against_large, strict=True):
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
    """The smallest difference that matters.

    Args:
        fixed: it, where the measure has one (`SMALLEST_ACCURACY` of an accuracy); None: a tenth of the gap.
        gap: mean of the row `fresh` minus mean of `base`, in the direction in which more is better.
    """
    return SMALLEST_SHARE_OF_GAP * gap if fixed is None else fixed


def shows_loss(gaps: Sequence[float], fixed: float | None) -> bool:
    """Whether a stream shows that plasticity is lost: a new network is better than the old one by what matters.

    Args:
        gaps: `fresh` minus `base` on each seed, in the direction in which more is better.
        fixed: the smallest difference that matters, which the mean gap must reach; None: that difference is a part of
            the gap itself, and the gap's 95 % interval must lie above 0.
    """
    values = np.asarray(gaps, np.float64)
    if fixed is not None:
        return bool(values.mean() >= fixed)
    return bool(TTest(values).interval()[0] > 0)


def power(effect: float, spread: float, seeds: int, comparisons: int = 1, level: float = LEVEL) -> float:
    """The chance that the two-sided paired t test finds an effect of this size.

    Args:
        effect: true mean difference.
        spread: standard deviation of the differences over seeds.
        seeds: how many, at least 2.
        comparisons: of the family: the test is at `level` / comparisons, the first and hardest step of Holm's.
        level: of the family.
    """
    if spread == 0:
        return 1.0
    freedom = seeds - 1
    threshold = stats.t.isf(level / comparisons / 2, freedom)
    shift = abs(effect) / spread * math.sqrt(seeds)
    return float(stats.nct.sf(threshold, freedom, shift) + stats.nct.cdf(-threshold, freedom, shift))


def pooled_spread(differences: Sequence[Sequence[float]]) -> float:
    """Standard deviation of paired differences over seeds, pooled over comparisons of few seeds each."""
    arrays = [np.asarray(values, np.float64) for values in differences]
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in arrays)
    freedom = sum(len(values) - 1 for values in arrays)
    return math.sqrt(squares / freedom)


class TTest:
    """Paired t tests of differences by seed, (n,)."""

    def __init__(self, differences: Floats) -> None:
        self.mean = float(differences.mean())
        self.freedom = len(differences) - 1
        self.error = float(differences.std(ddof=1)) / math.sqrt(len(differences))

    def above(self, bound: float) -> float:
        """The p value against a true difference of `bound` or less."""
        if self.error == 0:
            return 0.0 if self.mean > bound else 1.0
        return float(special.stdtr(self.freedom, -(self.mean - bound) / self.error))

    def below(self, bound: float) -> float:
        """The p value against a true difference of `bound` or more."""
        if self.error == 0:
            return 0.0 if self.mean < bound else 1.0
        return float(special.stdtr(self.freedom, (self.mean - bound) / self.error))

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the true difference."""
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
        """The p value against a true difference of `bound` or less."""
        shifted = self.differences - bound
        flipped = self.signs @ shifted  # (flips,), sums
        return float((flipped >= shifted.sum() - 1e-12 * np.abs(shifted).sum()).mean())

    def below(self, bound: float) -> float:
        """The p value against a true difference of `bound` or more."""
        return SignFlipTest(-self.differences).above(-bound)

    def interval(self) -> tuple[float, float]:
        """The 95 % interval: the true differences that neither one-sided test rejects at 2.5 %."""
        reach = float(np.ptp(self.differences)) + abs(self.mean) + 1e-12
        outside = self.mean - 2 * reach, self.mean + 2 * reach
        if self.above(outside[0]) > LEVEL / 2:  # too few seeds to reject anything
            return -math.inf, math.inf
        low = optimize.bisect(lambda bound: self.above(bound) - LEVEL / 2, outside[0], self.mean, xtol=1e-6 * reach)
        high = optimize.bisect(lambda bound: self.below(bound) - LEVEL / 2, self.mean, outside[1], xtol=1e-6 * reach)
        return float(low), float(high)


TESTS: dict[Test, type[TTest] | type[SignFlipTest]] = {"t": TTest, "permutation": SignFlipTest}


def either_side(tested: TTest | SignFlipTest) -> float:
    """The two-sided p value against no difference."""
    return min(1.0, 2 * min(tested.above(0.0), tested.below(0.0)))
