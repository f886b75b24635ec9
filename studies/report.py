"""Report what a study has shown so far: outcomes by the rule of `studies.verdict`, tables, and a figure.

    python -m studies.report how_far      prints Markdown and writes outcomes.csv and how_far.png beside the tables

The page of a study is written by hand from what this prints, once, when the study has ended.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.estimates import mean
from fire_core.tools.output import keep_output
from studies.driver import Measure, Stream, Study, read_csv, write_derived
from studies.verdict import Comparison, judge, shows_loss, smallest_that_matters

# Rows of the figure, with the part of the way to the isometry that they go.
HOW_FAR = {"base": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "fire": 1.0}
WORST_ACCURACY = 0.0  # of a run that diverged


@dataclass(frozen=True)
class Result:
    """The report runs of one stream in one setting.

    Attributes:
        values: row -> seed -> the measure, with its sign such that more is better.
        kept: row -> share of the old task's performance that is left right after an act, mean over seeds.
    """

    values: dict[str, dict[int, float]]
    kept: dict[str, float]

    def differences(self, row: str, rival: str) -> list[float]:
        """Return `row` minus `rival` on each seed that both have."""
        ours, theirs = self.values.get(row, {}), self.values.get(rival, {})
        return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]

    def won_back(self, row: str) -> float:
        """Return which part of fresh minus base a row wins back: 0 is base, 1 is fresh.

        All three are means over the seeds that all of them have.
        """
        seeds = self.values[row].keys() & self.values["base"].keys() & self.values["fresh"].keys()
        fresh = np.mean([self.values["fresh"][seed] for seed in seeds])
        base = np.mean([self.values["base"][seed] for seed in seeds])
        ours = np.mean([self.values[row][seed] for seed in seeds])
        return float((ours - base) / (fresh - base))


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
        kept: dict[str, list[float]] = {}
        for line in lines:
            if line["setting"] != setting or line["row"] not in stream.rows:
                continue
            text = line.get(stream.measure.name)
            value = stream.measure.sign * float(text) if text else worst
            values.setdefault(line["row"], {})[int(line["seed"])] = value
            if (share := kept_share(stream.measure, line)) is not None:
                kept.setdefault(line["row"], []).append(share)
        results[setting] = Result(values, {row: float(np.mean(shares)) for row, shares in kept.items()})
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


def table(stream: Stream, results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of a Markdown table of a stream's rows: mean with a 95 % interval, part won back, share kept."""
    yield "| setting | row | seeds | mean | 95 % interval | part of fresh minus base | left of the old task |"
    yield "|---|---|---|---|---|---|---|"
    for setting, result in results.items():
        for row in stream.rows:
            if row not in result.values:
                continue
            estimate = mean([stream.measure.sign * value for value in result.values[row].values()])
            both = {"fresh", "base"} <= result.values.keys()
            won = f"{result.won_back(row):.2f}" if both and row not in ("fresh", "base") else ""
            kept = f"{result.kept[row]:.2f}" if row in result.kept else ""
            interval = f"{estimate.low:.4g} to {estimate.high:.4g}"
            yield f"| {setting} | {row} | {estimate.n} | {estimate.mean:.4g} | {interval} | {won} | {kept} |"


def draw(shown: Mapping[str, Result]) -> Figure:
    """Draw over how far an act goes: above the part of fresh minus base that it wins back, below the share it keeps."""
    figure = Figure(figsize=(5.5, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for name, result in shown.items():
        rows = [row for row in HOW_FAR if row in result.values]
        (line,) = upper.plot([HOW_FAR[row] for row in rows], [result.won_back(row) for row in rows], "o-", label=name)
        rows = [row for row in rows if row in result.kept]
        lower.plot([HOW_FAR[row] for row in rows], [result.kept[row] for row in rows], "o-", color=line.get_color())
    upper.axhline(1.0, color="grey", linewidth=0.8)
    upper.set_ylabel("part of fresh minus base won back")
    lower.set_ylabel("left of the old task after the act")
    lower.set_xlabel("how far: 0 is no intervention, 1 is FIRE")
    upper.legend(fontsize="small")
    return figure


def main(arguments: Sequence[str]) -> None:
    """Print a study's results, and write its outcomes and its figure."""
    study = Study(arguments[0], 1)
    lines: list[dict[str, Any]] = []
    shown: dict[str, Result] = {}
    sources: list[Path] = []
    for name, stream in study.streams.items():
        rows = read_csv(study.folder / f"{name}.csv")
        if not rows:
            continue
        sources.append(study.folder / f"{name}.csv")
        results = results_of(stream, rows)
        power = study.folder / f"{name}.power.json"
        descriptive = json.loads(power.read_text())["descriptive"] if power.exists() else None
        gaps = gaps_of(results)
        print(f"\n## {name}\n")
        if len(gaps) > 1 and not shows_loss(gaps, stream.measure.smallest):
            print(f"This stream shows no loss: fresh minus base is {np.mean(gaps):.4g}.\n")
        elif gaps:
            shown |= {f"{name} {setting}".strip(): result for setting, result in results.items() if result.kept}
        print("\n".join(table(stream, results)), end="\n\n")
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
    if shown:
        draw(shown).savefig(study.folder / f"{study.name}.png", dpi=150)


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
