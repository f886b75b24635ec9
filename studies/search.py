"""What a search chooses, and the power that a report has by the spread on the search's seeds."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence

from studies.streams import SEARCH_SEEDS, STEP, Point, Stream
from studies.tables import Key, Row, Table, has_diverged
from studies.verdict import pooled_spread, power, smallest_that_matters

POWER = 0.8  # below it the outcome of a comparison is called descriptive


def score_of(table: Table, stream: Stream, key: Key) -> float:
    """Return a run's measure, with its sign such that more is better; minus infinity if the run diverged."""
    line = table.lines[key]
    return -math.inf if has_diverged(line) else stream.measure.sign * float(line[stream.measure.name])


def best_point(stream: Stream, table: Table, setting: str, row: str, points: Sequence[Point], length: str) -> Point:
    """Return the point with the highest mean over the search's seeds, the first of equal ones."""

    def mean_score(point: Point) -> float:
        keys = (Key(setting, row, " ".join(point.options), length, seed) for seed in SEARCH_SEEDS)
        return statistics.fmean(score_of(table, stream, key) for key in keys)

    best = max(points, key=mean_score)
    if mean_score(best) == -math.inf:
        sys.exit(f"error: every run of the search of {f'{setting} {row}'.strip()} diverged")
    return best


def next_rate(points: Sequence[Point], best: Point) -> list[Point]:
    """Return the next point to try if the best rate is the highest or the lowest of those tried, else no point."""
    rates = [point.rate for point in points if point.coefficients == best.coefficients]
    if best.rate == max(rates):
        return [best.at(STEP)]
    if best.rate == min(rates):
        return [best.at(1 / STEP)]
    return []


def searched_power(stream: Stream, scores: Mapping[tuple[str, str], Sequence[float]]) -> Row:
    """Return the power of the report by the spread on the search's seeds: `power_of`, and the search's `gap`.

    Args:
        stream: the stream.
        scores: (setting, row) -> the scores of the chosen point, one for each search seed.
    """
    gaps = [
        new - old
        for setting in stream.settings
        if "fresh" in stream.rows
        for new, old in zip(scores[setting, "fresh"], scores[setting, "base"], strict=True)
    ]
    gap = statistics.fmean(gaps) if gaps else None
    differences = [
        [ours - theirs for ours, theirs in zip(scores[setting, row], scores[setting, rival], strict=True)]
        for setting in stream.settings
        for row, rival in stream.family
    ]
    finite = [values for values in differences if all(map(math.isfinite, values))]
    if not finite:
        sys.exit("error: in each comparison of the family a run of the search diverged, so there is no spread")
    smallest = smallest_that_matters(stream.measure.smallest, math.nan if gap is None else gap)
    return {"gap": gap} | power_of(stream, smallest, pooled_spread(finite))


def power_of(stream: Stream, smallest: float, spread: float) -> Row:
    """Return the power of a stream's report for an effect of twice the smallest difference that matters.

    Args:
        stream: the stream.
        smallest: the smallest difference that matters.
        spread: standard deviation of paired differences over seeds.

    Returns:
        `smallest` and `spread`; `comparisons`, their number in the family; `pairs`: for each pair (row, rival) of the
        family the `seeds` that both have, its `power`, and whether it is `descriptive`: its power is below 0.8, or
        there is no smallest difference above 0.
    """
    comparisons = len(stream.family) * len(stream.settings)
    pairs = []
    for row, rival in stream.family:
        seeds = len({*stream.report_seeds(row)} & {*stream.report_seeds(rival)})
        reached = power(2 * smallest, spread, seeds, comparisons)
        is_enough = smallest > 0 and reached >= POWER  # a NaN is not enough
        pairs.append({"row": row, "rival": rival, "seeds": seeds, "power": reached, "descriptive": not is_enough})
    return {"smallest": smallest, "spread": spread, "comparisons": comparisons, "pairs": pairs}
