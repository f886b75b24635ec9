"""Answer the question of the study how_far from its outcomes, by the rules of its frozen plan.

python -m studies.how_far_answer      reads outcomes.csv, which `python -m studies.report how_far` writes
"""

import sys
from collections.abc import Mapping, Sequence

from fire_core.tools.output import keep_output
from studies.driver import Study
from studies.tables import Row, read_csv
from studies.verdict import Outcome

STREAMS_FOR_ADVICE = 4  # in which half must be better than FIRE before it is recommended
RIVALS_IN_WORDS = {"random_isometry": "a random isometry", "full_reset": "a full reset", "snp": "S&P"}


def main() -> None:
    """Print each stream's outcomes against each rival, and the answer."""
    lines = read_csv(Study("how_far", 1).folder / "outcomes.csv")
    if not lines:
        sys.exit("error: no stream has outcomes: python -m studies.report how_far")
    print("| stream | counts | FIRE | random isometry | full reset | S&P |")
    print("|---|---|---|---|---|---|")
    for stream in dict.fromkeys(line["stream"] for line in lines):
        counted = counted_lines(stream, lines)
        outcomes = outcomes_by_rival(counted or [line for line in lines if line["stream"] == stream])
        cells = [outcomes.get(rival, "") for rival in ("fire", *RIVALS_IN_WORDS)]
        print(f"| {stream} | {'yes' if counted else 'no'} | {' | '.join(cells)} |")
    print()
    print(answer(lines))


def rival_of(line: Row) -> str:
    """Return the rival of a comparison, the same whether biases are kept or put back."""
    return str(line["rival"]).removesuffix("_biases")


def counted_lines(stream: str, lines: Sequence[Row]) -> list[Row]:
    """Return the comparisons of a stream that count: where a loss is shown, unless those with FIRE are descriptive."""
    shown = [line for line in lines if line["stream"] == stream and line["loss_shown"] == "True"]
    is_descriptive = any(line["descriptive"] == "True" for line in shown if rival_of(line) == "fire")
    return [] if is_descriptive else shown


def outcomes_by_rival(lines: Sequence[Row]) -> dict[str, Outcome]:
    """Return rival -> outcome of a stream, from its comparisons in all settings and with biases kept or put back."""
    by_rival: dict[str, list[Outcome]] = {}
    for line in lines:
        by_rival.setdefault(rival_of(line), []).append(line["outcome"])
    return {rival: joint_outcome(outcomes) for rival, outcomes in by_rival.items()}


def joint_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome for several comparisons with the same rival.

    Worse if any is worse; better if at least half of them are better; equivalent if all are; else undecided.
    """
    if "worse" in outcomes:
        return "worse"
    if 2 * outcomes.count("better") >= len(outcomes):
        return "better"
    return "equivalent" if {*outcomes} == {"equivalent"} else "undecided"


def answer(lines: Sequence[Row]) -> str:
    """Return the answer to the study's question in words.

    The cases are those of the plan, in its order but for "worse than FIRE in a stream", which is looked for first.

    Args:
        lines: of outcomes.csv, as text.
    """
    streams = [*dict.fromkeys(line["stream"] for line in lines)]
    counted = {stream: rows for stream in streams if (rows := counted_lines(stream, lines))}
    outcomes = {stream: outcomes_by_rival(rows) for stream, rows in counted.items()}
    better = streams_with(outcomes, "fire", "better")
    worse = [
        *dict.fromkeys(place_of(line) for line in lines if rival_of(line) == "fire" and line["outcome"] == "worse")
    ]
    if worse:
        and_better = f", and better in {' and '.join(better)}" if better else ""
        return f"Half of the way is worse than FIRE in {' and '.join(worse)}{and_better}. It is not recommended."
    if better:
        sentence = f"Half of the way is better than FIRE in {len(better)} of {len(outcomes)} streams that count"
        sentence += f" ({', '.join(better)}), and worse in none"
        beaten = [
            f"worse than {name} in {' and '.join(streams_with(outcomes, rival, 'worse'))}"
            for rival, name in RIVALS_IN_WORDS.items()
            if streams_with(outcomes, rival, "worse")
        ]
        sentence += f"; it is {', '.join(beaten)}" if beaten else ""
        if len(better) < STREAMS_FOR_ADVICE:
            return f"{sentence}. Nothing is recommended beyond these streams."
        return f"{sentence}. {'It is a better FIRE, and not the best act.' if beaten else 'It is what we recommend.'}"
    equivalent = streams_with(outcomes, "fire", "equivalent")
    if 2 * len(equivalent) > len(outcomes) and all(keeps_more(rows) for rows in counted.values()):
        return f"Half of the way costs nothing in {', '.join(equivalent)}, and keeps more of the old task."
    return f"Nothing is recommended: of {len(outcomes)} streams that count, half is better than FIRE in none."


def place_of(line: Row) -> str:
    """Return the stream of a comparison, and its setting."""
    return f"{line['stream']} {line['setting']}".strip()


def streams_with(outcomes: Mapping[str, Mapping[str, Outcome]], rival: str, outcome: Outcome) -> list[str]:
    """Return the streams that have an outcome against a rival."""
    return [stream for stream, by_rival in outcomes.items() if by_rival.get(rival) == outcome]


def keeps_more(lines: Sequence[Row]) -> bool:
    """Return whether half keeps more of the old task than FIRE in all of a stream's comparisons, by their intervals."""
    return all(float(line["kept_low"] or "nan") > 0 for line in lines if rival_of(line) == "fire")


if __name__ == "__main__":
    keep_output()
    main()
