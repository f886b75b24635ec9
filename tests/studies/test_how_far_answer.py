"""The answer of the study how_far, from outcomes that are made up for each of its rules."""

import pytest

from studies.how_far_answer import answer, joint_outcome
from studies.tables import Row
from studies.verdict import Outcome

STREAMS = ("labels", "cartpole", "permuted_fashion", "pendulum", "labels_fashion")


def line(stream: str, rival: str, outcome: str, **more: str) -> Row:
    given = {"stream": stream, "setting": "", "row": "half", "rival": rival, "outcome": outcome}
    return given | {"descriptive": "False", "loss_shown": "True", "kept_low": "0.1"} | more


def against(fire: str, snp: str = "undecided", streams: tuple[str, ...] = STREAMS) -> list[Row]:
    return [line(stream, *pair) for stream in streams for pair in (("fire", fire), ("snp", snp))]


@pytest.mark.parametrize(
    ("outcomes", "joint"),
    [
        (["better"], "better"),
        (["better", "undecided"], "better"),
        (["better", "undecided", "undecided"], "undecided"),
        (["better", "better", "worse"], "worse"),
        (["equivalent", "equivalent"], "equivalent"),
        (["equivalent", "undecided"], "undecided"),
    ],
)
def test_several_comparisons_have_one_outcome(outcomes: list[Outcome], joint: Outcome) -> None:
    assert joint_outcome(outcomes) == joint


def test_better_in_four_streams_is_advice_unless_a_rival_is_better() -> None:
    assert answer(against("better", streams=STREAMS[:4])).endswith("It is what we recommend.")
    assert "worse than S&P in labels" in answer([*against("better"), line("labels", "snp", "worse")])
    assert answer([*against("better"), line("labels", "snp", "worse")]).endswith(
        "It is a better FIRE, and not the best act."
    )


def test_better_in_fewer_is_said_of_these_alone() -> None:
    said = answer(against("better", streams=STREAMS[:3]) + against("undecided", streams=STREAMS[3:]))
    assert "better than FIRE in 3 of 5 streams that count (labels, cartpole, permuted_fashion)" in said
    assert said.endswith("Nothing is recommended beyond these streams.")


@pytest.mark.parametrize("why", [{"descriptive": "True"}, {"loss_shown": "False"}])
def test_a_stream_counts_if_it_shows_a_loss_and_has_power(why: dict[str, str]) -> None:
    lines = [row | (why if row["stream"] == "labels" else {}) for row in against("better", streams=STREAMS[:4])]
    assert "better than FIRE in 3 of 3 streams that count" in answer(lines)


def test_worse_is_said_wherever_it_is() -> None:
    lines = [*against("better"), line("warm_start", "fire", "worse", loss_shown="False")]
    assert answer(lines).startswith("Half of the way is worse than FIRE in warm_start, and better in labels and")
    assert answer(lines).endswith("It is not recommended.")


def test_equivalent_streams_that_keep_more_cost_nothing() -> None:
    lines = against("equivalent")
    assert "costs nothing" in answer(lines)
    lines[0]["kept_low"] = "-0.1"
    assert answer(lines).startswith("Nothing is recommended")
    assert (
        answer(against("undecided"))
        == "Nothing is recommended: of 5 streams that count, half is better than FIRE in none."
    )


def test_biases_kept_and_put_back_are_one_rival() -> None:
    lines = [line("labels", "fire", "better"), line("labels", "fire_biases", "undecided")]
    assert "better than FIRE in 1 of 1" in answer(lines)
