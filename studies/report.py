"""Report what a study has shown so far: tables, and outcomes by the rule of `studies.verdict`.

    python -m studies.report how_far      prints Markdown and writes outcomes.csv beside the tables

The page of a study is written by hand from what this prints, once, when the study has ended. Its figure is drawn by a
file of its own, `studies/<name>_figure.py`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import Estimate, mean, widened_tail
from fire_core.tools.output import keep_output
from studies.driver import Study
from studies.streams import Measure, Stream
from studies.tables import Row, has_diverged, read_csv, write_derived
from studies.verdict import Comparison, judge, shows_loss, smallest_that_matters

WORST_ACCURACY = 0.0  # of a run that diverged
RESAMPLES = 10_000  # of the seeds, for the interval of a ratio
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """The report runs of one stream in one setting.

    Attributes:
        measure: the stream's measure.
        values: row -> seed -> the measure, with its sign such that more is better.
        kept: row -> seed -> the old task's accuracy, return or loss before and after an act, means over a run's acts;
            without runs that diverged.
        beside: row -> seed -> the measure's second number.
        diverged: row -> number of runs that diverged.
    """

    measure: Measure
    values: Mapping[str, Mapping[int, float]]
    kept: Mapping[str, Mapping[int, tuple[float, float]]]
    beside: Mapping[str, Mapping[int, float]]
    diverged: Mapping[str, int]

    def differences(self, row: str, rival: str) -> list[float]:
        """Return `row` minus `rival` on each seed that both have."""
        ours, theirs = self.values.get(row, {}), self.values.get(rival, {})
        return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]

    def has_loss(self) -> bool | None:
        """Return whether this setting shows a loss of plasticity (`verdict.shows_loss`); None below two seeds."""
        gaps = self.differences("fresh", "base")
        return shows_loss(gaps, self.measure.smallest) if len(gaps) > 1 else None

    def won_back(self, row: str) -> Estimate:
        """Return which part of fresh minus base a row wins back: 0 is base, 1 is fresh.

        All three are means over the seeds that all of them have.
        """

        def part(means: Floats) -> Floats:  # (3, ...) -> (...)
            ours, base, fresh = means
            return ratio(ours - base, fresh - base)

        rows = [self.values.get(name, {}) for name in (row, "base", "fresh")]
        seeds = sorted(set.intersection(*map(set, rows)))
        return estimate_by_resampling(np.array([[values[seed] for seed in seeds] for values in rows]), part)

    def kept_share(self, row: str) -> Estimate:
        """Return which share of the old task's performance is left right after an act.

        It is the mean over seeds after an act, divided by the mean before it; of losses exp(before - after). NaN where
        the mean accuracy or return before the act is not above 0.
        """
        numbers = np.array([*self.kept.get(row, {}).values()]).T  # (2, seeds): before and after
        return estimate_by_resampling(numbers, self._share)

    def kept_difference(self, row: str, rival: str) -> Estimate:
        """Return `kept_share` of a row minus that of a rival, over the seeds that both have."""
        ours, theirs = self.kept.get(row, {}), self.kept.get(rival, {})
        seeds = sorted(ours.keys() & theirs.keys())
        numbers = np.array([[*ours[seed], *theirs[seed]] for seed in seeds]).T  # (4, seeds)
        return estimate_by_resampling(numbers, lambda means: self._share(means[:2]) - self._share(means[2:]))

    def _share(self, means: Floats) -> Floats:
        """Return the share that is left, (...), of means before and after an act, (2, ...)."""
        before, after = means
        if self.measure.kept.endswith("loss"):
            return np.asarray(np.exp(before - after))
        return ratio(after, before)


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return a ratio, (...); NaN where the denominator is not above 0."""
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), np.nan)


def estimate_by_resampling(numbers: Floats, statistic: Callable[[Floats], Floats]) -> Estimate:
    """Return a statistic of means over seeds, with its 95 % interval by resampling seeds.

    A resample without such a statistic, as a ratio whose denominator is not above 0, counts as beyond the interval on
    both sides, so that the interval is wider. If there are too many of them it is infinite. Below three seeds, or
    if the means of all seeds have no such statistic, low and high are NaN.

    Args:
        numbers: (k, seeds); the k numbers of a seed are resampled together.
        statistic: of means, (k, ...) -> (...).
    """
    if not numbers.size:
        return mean([])
    seeds = numbers.shape[1]
    whole = float(statistic(numbers.mean(1)))
    if seeds < 3 or np.isnan(whole):
        return Estimate(whole, np.nan, np.nan, seeds)
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    tail = widened_tail(seeds)
    resampled = statistic(numbers[:, drawn].mean(2))
    undefined = np.isnan(resampled)
    with np.errstate(invalid="ignore"):  # next to an infinite number the interpolation gives NaN
        low = float(np.quantile(np.where(undefined, -np.inf, resampled), tail))
        high = float(np.quantile(np.where(undefined, np.inf, resampled), 1 - tail))
    return Estimate(whole, -np.inf if np.isnan(low) else low, np.inf if np.isnan(high) else high, seeds)


def results_of(stream: Stream, lines: Sequence[Row]) -> dict[str, Result]:
    """Return the results of a stream by setting, with the rows that have run.

    A diverged run counts with accuracy 0, or, if the measure is no accuracy, with the worst value of any run.

    Args:
        stream: the stream.
        lines: lines of its table of report runs.

    Raises:
        ValueError: two lines are about the same row and seed.
    """
    measure = stream.measure
    measured = [measure.sign * float(line[measure.name]) for line in lines if not has_diverged(line)]
    worst = WORST_ACCURACY if "accuracy" in measure.name else min(measured, default=float("nan"))
    results = {}
    for setting in stream.settings:
        values: dict[str, dict[int, float]] = {}
        kept: dict[str, dict[int, tuple[float, float]]] = {}
        beside: dict[str, dict[int, float]] = {}
        diverged: dict[str, int] = {}
        for line in lines:
            row, seed = line["row"], int(line["seed"])
            if line["setting"] != setting or row not in stream.rows:
                continue
            if seed in values.setdefault(row, {}):
                raise ValueError(f"{setting} {row} seed {seed} stands in the table twice")
            values[row][seed] = worst if has_diverged(line) else measure.sign * float(line[measure.name])
            diverged[row] = diverged.get(row, 0) + has_diverged(line)
            if line.get(f"{measure.kept}_before"):
                before, after = (float(line[f"{measure.kept}_{side}"]) for side in ("before", "after"))
                kept.setdefault(row, {})[seed] = before, after
            if measure.beside and line.get(measure.beside):
                beside.setdefault(row, {})[seed] = float(line[measure.beside])
        results[setting] = Result(measure, values, kept, beside, diverged)
    return results


def smallest_of(stream: Stream, results: Mapping[str, Result]) -> float | None:
    """Return the smallest difference that matters; None if it is a part of a loss that the stream does not show."""
    gaps = [gap for result in results.values() for gap in result.differences("fresh", "base")]
    if stream.measure.smallest is None and (len(gaps) < 2 or not shows_loss(gaps, None)):
        return None
    return smallest_that_matters(stream.measure.smallest, float(np.mean(gaps)) if gaps else float("nan"))


def outcomes_of(stream: Stream, results: Mapping[str, Result]) -> dict[tuple[str, str, str], Comparison]:
    """Return (setting, row, rival) -> outcome for each comparison of a stream's family.

    Raises:
        ValueError: a comparison has fewer than two seeds.
    """
    family = {
        (setting, row, rival): result.differences(row, rival)
        for setting, result in results.items()
        for row, rival in stream.family
    }
    judged = judge({"|".join(key): values for key, values in family.items()}, smallest_of(stream, results), stream.test)
    return {key: judged["|".join(key)] for key in family}


def table(stream: Stream, results: Mapping[str, Result], chosen: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield the lines of a Markdown table of a stream's rows, with 95 % intervals in parentheses.

    The part of fresh minus base that a row wins back stands only where the setting shows a loss.

    Args:
        stream: the stream.
        results: setting -> result.
        chosen: (setting, row) -> the options that its search chose.
    """
    yield (
        f"| setting | row | searched | seeds, diverged | {stream.measure.name} | {stream.measure.beside or ''} "
        "| part of fresh minus base, seeds | old task before, after | left of the old task |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for setting, result in results.items():
        for row in (row for row in stream.rows if row in result.values):
            measured = mean([stream.measure.sign * value for value in result.values[row].values()])
            beside = mean([*result.beside.get(row, {}).values()])
            part = result.won_back(row) if result.has_loss() and row not in ("fresh", "base") else mean([])
            before, after = (
                f"{mean([pair[side] for pair in result.kept.get(row, {}).values()]).mean:.3g}" for side in (0, 1)
            )
            cells = (
                setting,
                row,
                chosen.get((setting, row), ""),
                f"{measured.n}, {result.diverged[row]}",
                in_words(measured, ".4g"),
                f"{beside.mean:.4g}" if beside.n else "",
                f"{in_words(part, '.2f')}, {part.n}" if part.n else "",
                f"{before} to {after}" if row in result.kept else "",
                in_words(result.kept_share(row), ".2f"),
            )
            yield f"| {' | '.join(cells)} |"


def in_words(estimate: Estimate, digits: str) -> str:
    """Return an estimate with its interval, as `0.52 (0.48 to 0.56)`; empty without a seed."""
    if not estimate.n:
        return ""
    interval = f" ({estimate.low:{digits}} to {estimate.high:{digits}})" if not np.isnan(estimate.low) else ""
    return f"{estimate.mean:{digits}}{interval}"


def missing_runs(stream: Stream, results: Mapping[str, Result]) -> int:
    """Return how many report runs of a stream have not ended."""
    return sum(
        len({*stream.report_seeds(row)} - result.values.get(row, {}).keys())
        for result in results.values()
        for row in stream.rows
    )


def descriptive_pairs(study: Study, name: str) -> dict[tuple[str, str], bool]:
    """Return (row, rival) -> whether the outcome of a stream's comparison is called descriptive, from its power."""
    power = json.loads((study.folder / f"{name}.power.json").read_text())
    return {(pair["row"], pair["rival"]): pair["descriptive"] for pair in power["pairs"]}


def outcome_lines(study: Study, name: str, results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Return a line for each comparison of a stream: what is compared, whether a loss is shown, and its outcome."""
    stream, descriptive = study.streams[name], descriptive_pairs(study, name)
    lines = []
    for (setting, row, rival), comparison in outcomes_of(stream, results).items():
        kept = results[setting].kept_difference(row, rival)
        lines.append(
            {
                "stream": name,
                "setting": setting,
                "row": row,
                "rival": rival,
                **asdict(comparison),
                "smallest": smallest_of(stream, results),
                "descriptive": descriptive[row, rival],
                "loss_shown": results[setting].has_loss(),
                "kept_seeds": kept.n,
                "kept_difference": kept.mean if kept.n else None,
                "kept_low": kept.low if kept.n else None,
                "kept_high": kept.high if kept.n else None,
            }
        )
    return lines


def main(arguments: Sequence[str]) -> None:
    """Print a study's results, and write its outcomes."""
    study = Study(arguments[0], 1)
    lines: list[dict[str, Any]] = []
    sources = []
    for name, stream in study.streams.items():
        rows = read_csv(study.folder / f"{name}.csv")
        if not rows:
            continue
        results = results_of(stream, rows)
        print(f"\n## {name}\n")
        for setting, result in results.items():
            if result.has_loss() is False:
                gap = in_words(mean(result.differences("fresh", "base")), ".4g")
                print(f"{f'{name} {setting}'.strip()} shows no loss: fresh minus base is {gap}.\n")
        print("\n".join(table(stream, results, study.chosen(name))), end="\n\n")
        if missing := missing_runs(stream, results):
            print(f"No outcomes yet: {missing} runs are missing.\n")
            continue
        print("| comparison | effect | 95 % interval | seeds | p | p of equivalence | outcome | left: difference |")
        print("|---|---|---|---|---|---|---|---|")
        for line in outcome_lines(study, name, results):
            numbers = line["kept_difference"], line["kept_low"], line["kept_high"]
            kept = in_words(Estimate(*numbers, line["kept_seeds"]), ".2f")
            outcome = line["outcome"]
            if line["descriptive"]:
                outcome += ", descriptive"
            if line["loss_shown"] is False:
                outcome += ", no loss shown"
            print(
                f"| {line['setting']} {line['row']} minus {line['rival']} | {line['effect']:.4g} "
                f"| {line['low']:.4g} to {line['high']:.4g} | {line['seeds']} | {line['p_difference']:.3g} "
                f"| {line['p_equivalence']:.3g} | {outcome} | {kept} |"
            )
            lines.append(line)
        sources.append(study.folder / f"{name}.csv")
    if lines:
        write_derived(study.folder / "outcomes.csv", lines, sources, f"python -m studies.report {study.name}")


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
