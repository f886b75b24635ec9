"""Report what a study has shown so far: tables, and outcomes by the rule of `studies.verdict`.

    python -m studies.report how_far      prints Markdown and writes outcomes.csv beside the tables

The page of a study is written by hand from what this prints, once, when the study has ended. Its figure is drawn by a
file of its own, `studies/<name>_figure.py`.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.estimates import Estimate, mean, widened_tail
from fire_core.tools.output import keep_output
from studies.driver import Measure, Stream, Study, read_csv, write_derived
from studies.verdict import Comparison, judge, shows_loss, smallest_that_matters

WORST_ACCURACY = 0.0  # of a run that diverged
RESAMPLES = 10_000  # of the seeds, for the interval of a ratio


@dataclass(frozen=True)
class Result:
    """The report runs of one stream in one setting.

    Attributes:
        values: row -> seed -> the measure, with its sign such that more is better.
        kept: row -> seed -> share of the old task's performance that is left right after an act.
    """

    values: dict[str, dict[int, float]]
    kept: dict[str, dict[int, float]]

    def differences(self, row: str, rival: str) -> list[float]:
        """Return `row` minus `rival` on each seed that both have."""
        ours, theirs = self.values.get(row, {}), self.values.get(rival, {})
        return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]

    def won_back(self, row: str) -> Estimate:
        """Return which part of fresh minus base a row wins back: 0 is base, 1 is fresh.

        All three are means over the seeds that all of them have; without such a seed it is NaN. The 95 % interval is by
        resampling these seeds, with all three rows of a seed together; below three seeds it is NaN.
        """
        rows = [self.values[name] for name in (row, "base", "fresh")]
        seeds = sorted(set.intersection(*map(set, rows)))
        if not seeds:
            return mean([])
        numbers = np.array([[values[seed] for seed in seeds] for values in rows])  # (3, seeds)

        def part(means: np.ndarray) -> np.ndarray:  # (3, ...) -> (...)
            ours, base, fresh = means
            return np.asarray((ours - base) / (fresh - base))

        whole = float(part(numbers.mean(1)))
        if len(seeds) < 3:
            return Estimate(whole, np.nan, np.nan, len(seeds))
        drawn = np.random.default_rng(0).integers(len(seeds), size=(RESAMPLES, len(seeds)))
        tail = widened_tail(len(seeds))
        low, high = np.quantile(part(numbers[:, drawn].mean(2)), [tail, 1 - tail])
        return Estimate(whole, float(low), float(high), len(seeds))

    def has_loss(self, measure: Measure) -> bool | None:
        """Return whether this setting shows a loss of plasticity (`verdict.shows_loss`); None below two seeds."""
        gaps = self.differences("fresh", "base")
        return shows_loss(gaps, measure.smallest) if len(gaps) > 1 else None


def results_of(stream: Stream, lines: Sequence[Mapping[str, str]]) -> dict[str, Result]:
    """Return the results of a stream by setting, with the rows that have run.

    A diverged run counts with accuracy 0, or, if the measure is no accuracy, with the worst value of any run.

    Args:
        stream: the stream.
        lines: lines of its table of report runs.
    """
    measured = [
        stream.measure.sign * float(line[stream.measure.name]) for line in lines if line.get(stream.measure.name)
    ]
    worst = WORST_ACCURACY if "accuracy" in stream.measure.name else min(measured, default=float("nan"))
    results = {}
    for setting in stream.settings:
        values: dict[str, dict[int, float]] = {}
        kept: dict[str, dict[int, float]] = {}
        for line in lines:
            if line["setting"] != setting or line["row"] not in stream.rows:
                continue
            text, seed = line.get(stream.measure.name), int(line["seed"])
            value = stream.measure.sign * float(text) if text else worst
            values.setdefault(line["row"], {})[seed] = value
            if (share := kept_share(stream.measure, line)) is not None:
                kept.setdefault(line["row"], {})[seed] = share
        results[setting] = Result(values, kept)
    return results


def kept_share(measure: Measure, line: Mapping[str, str]) -> float | None:
    """Return which share of the old task's performance is left right after an act; None if the run has no such number.

    It is the ratio of accuracies or returns after and before the act; of losses the ratio of the probabilities that
    they stand for.
    """
    before, after = (line.get(f"{measure.kept}_{side}") for side in ("before", "after"))
    if not before or not after:
        return None
    if measure.kept.endswith("loss"):
        return float(np.exp(float(before) - float(after)))
    return float(after) / float(before)


def outcomes_of(stream: Stream, results: Mapping[str, Result]) -> dict[tuple[str, str, str], Comparison]:
    """Return (setting, row, rival) -> outcome for each comparison of a stream's family that has two seeds or more."""
    family = {
        (setting, row, rival): result.differences(row, rival)
        for setting, result in results.items()
        for row, rival in stream.family
    }
    family = {key: values for key, values in family.items() if len(values) > 1}
    smallest = smallest_that_matters(stream.measure.smallest, float(np.mean(gaps_of(results) or [np.nan])))
    if not family or not smallest > 0:
        return {}
    named = {"|".join(key): values for key, values in family.items()}
    judged = judge(named, smallest, stream.test)
    return {key: judged["|".join(key)] for key in family}


def gaps_of(results: Mapping[str, Result]) -> list[float]:
    """Return fresh minus base for each seed in each setting."""
    return [gap for result in results.values() for gap in result.differences("fresh", "base")]


def table(stream: Stream, results: Mapping[str, Result], chosen: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield the lines of a Markdown table of a stream's rows, with 95 % intervals.

    The part of fresh minus base that a row wins back stands only where the setting shows a loss.

    Args:
        stream: the stream.
        results: setting -> result.
        chosen: (setting, row) -> the options that its search chose.
    """
    yield (
        "| setting | row | searched | seeds | mean | 95 % interval | part of fresh minus base | 95 % interval "
        "| left of the old task |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for setting, result in results.items():
        for row in stream.rows:
            if row not in result.values:
                continue
            estimate = mean([stream.measure.sign * value for value in result.values[row].values()])
            won = won_interval = ""
            if result.has_loss(stream.measure) and row not in ("fresh", "base"):
                part = result.won_back(row)
                won = f"{part.mean:.2f}"
                won_interval = f"{part.low:.2f} to {part.high:.2f}" if np.isfinite(part.low) else ""
            kept = f"{mean([*result.kept[row].values()]).mean:.2f}" if row in result.kept else ""
            interval = f"{estimate.low:.4g} to {estimate.high:.4g}"
            yield (
                f"| {setting} | {row} | {chosen.get((setting, row), '')} | {estimate.n} | {estimate.mean:.4g} "
                f"| {interval} | {won} | {won_interval} | {kept} |"
            )


def main(arguments: Sequence[str]) -> None:
    """Print a study's results, and write its outcomes."""
    study = Study(arguments[0], 1)
    lines: list[dict[str, Any]] = []
    sources = []
    for name, stream in study.streams.items():
        rows = read_csv(study.folder / f"{name}.csv")
        if not rows:
            continue
        sources.append(study.folder / f"{name}.csv")
        results = results_of(stream, rows)
        power = study.folder / f"{name}.power.json"
        descriptive = json.loads(power.read_text())["descriptive"] if power.exists() else None
        print(f"\n## {name}\n")
        for setting, result in results.items():
            if result.has_loss(stream.measure) is False:
                gap = np.mean(result.differences("fresh", "base"))
                print(f"{f'{name} {setting}'.strip()} shows no loss: fresh minus base is {gap:.4g}.\n")
        print("\n".join(table(stream, results, study.chosen(name))), end="\n\n")
        print("| comparison | effect | 95 % interval | seeds | p | p of equivalence | outcome |")
        print("|---|---|---|---|---|---|---|")
        for (setting, row, rival), verdict in outcomes_of(stream, results).items():
            outcome = f"{verdict.outcome}{' (descriptive)' if descriptive else ''}"
            print(
                f"| {setting} {row} minus {rival} | {verdict.effect:.4g} | {verdict.low:.4g} to {verdict.high:.4g} "
                f"| {verdict.seeds} | {verdict.p_difference:.3g} | {verdict.p_equivalence:.3g} | {outcome} |"
            )
            lines.append({"stream": name, "setting": setting, "row": row, "rival": rival} | asdict(verdict))
    command = f"python -m studies.report {study.name}"
    write_derived(study.folder / "outcomes.csv", lines, sources, command)


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
