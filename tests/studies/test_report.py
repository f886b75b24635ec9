"""What a study reports, from rows worked by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.estimates import mean
from studies import how_far_answer, how_far_figure, report
from studies.driver import Study
from studies.report import Result, outcomes_of, results_of
from studies.search import power_of
from studies.streams import Measure
from studies.tables import read_csv, write_csv
from tests.studies.test_driver import TINY

STREAM = replace(
    TINY, rows=TINY.rows | {"half": ("method=fire", "method.blend=0.5")}, seeds={"*": (1, 2)}, family=[("half", "fire")]
)
# base .2, fresh .6: of the gap of .4 half wins back three quarters and FIRE, whose second run diverged, less.
ACCURACIES = {"base": (0.19, 0.21), "fresh": (0.6, 0.6), "half": (0.45, 0.55), "fire": (0.4, None)}


def lines() -> list[dict[str, str]]:
    return [
        {
            "setting": "",
            "row": row,
            "searched": "",
            "length": "full",
            "seed": str(seed),
            "online/accuracy": "" if value is None else str(value),
            "diverged": str(value is None),
            "previous_accuracy_before": "0.8",
            "previous_accuracy_after": "0.8" if row == "base" else "0.4",
        }
        for row, values in ACCURACIES.items()
        for seed, value in enumerate(values, start=1)
    ]


def test_rows_by_hand() -> None:
    (result,) = results_of(STREAM, lines()).values()
    assert result.values["fire"] == {1: 0.4, 2: 0.0}, "a run that diverged has accuracy 0"
    assert result.diverged == {"base": 0, "fresh": 0, "half": 0, "fire": 1}
    assert result.won_back("half").mean == pytest.approx((0.5 - 0.2) / 0.4)
    assert result.won_back("fire").mean == pytest.approx(0.0)
    assert result.kept["half"] == {1: (0.8, 0.4), 2: (0.8, 0.4)}
    assert result.kept_share("half").mean == pytest.approx(0.5)
    (verdict,) = outcomes_of(STREAM, {"": result}).values()
    assert verdict.effect == pytest.approx(((0.45 - 0.4) + (0.55 - 0.0)) / 2)
    assert verdict.outcome == "undecided"
    with pytest.raises(ValueError, match="twice"):
        results_of(STREAM, lines() * 2)


def result(measure: Measure = STREAM.measure, **numbers: Any) -> Result:
    return Result(measure, **{"values": {}, "kept": {}, "beside": {}, "diverged": {}} | numbers)


def test_the_part_won_back_has_an_interval_over_seeds_and_none_of_two() -> None:
    seeds = range(8)
    values = {
        "base": dict.fromkeys(seeds, 0.2),
        "fresh": dict.fromkeys(seeds, 0.6),
        "half": {seed: 0.5 + 0.02 * (-1) ** seed for seed in seeds},
    }
    part = result(values=values).won_back("half")
    spread = mean([(value - 0.2) / 0.4 for value in values["half"].values()])  # the gap is the same at each seed
    assert part.mean == pytest.approx(spread.mean)
    assert (part.low, part.high) == pytest.approx((spread.low, spread.high), abs=0.01)
    two = result(values={row: {seed: given[seed] for seed in (0, 1)} for row, given in values.items()})
    assert two.won_back("half").mean == pytest.approx(0.75)
    assert math.isnan(two.won_back("half").low)
    assert result(values=values | {"half": {99: 0.5}}).won_back("half").n == 0, "no seed in common"


def test_the_part_won_back_is_bounded_unless_too_many_resampled_gaps_reach_zero() -> None:
    values = {"base": {1: 0.2, 2: 0.6, 3: 0.2}, "fresh": {1: 0.6, 2: 0.5, 3: 0.7}, "half": {1: 0.5, 2: 0.5, 3: 0.5}}
    part = result(values=values).won_back("half")
    assert part.mean == pytest.approx((0.5 - 1 / 3) / (0.6 - 1 / 3))
    assert (part.low, part.high) == (-math.inf, math.inf), "one resample in 27 has the second seed alone"
    gaps = dict(enumerate([0.02, 0.05, -0.01, 0.04, 0.01, 0.05, 0.03, -0.01, 0.02, 0.03]))
    zeros, halves = dict.fromkeys(gaps, 0.0), {seed: gap / 2 for seed, gap in gaps.items()}
    for half, low, high in ((halves, 0.49, 0.51), (dict.fromkeys(gaps, 0.01), 0.2, 10.0)):
        part = result(values={"base": zeros, "fresh": gaps, "half": half}).won_back("half")
        assert low < part.low <= part.mean <= part.high < high, "a few resamples reach zero, and others bound the part"


def test_what_is_left_is_a_ratio_of_means() -> None:
    """A seed that had learned nothing before the act does not decide alone; nothing is divided by 0."""
    returns = Measure("task/return", smallest=None, sign=1, kept="previous_return")
    kept = {"half": {1: (500.0, 60.0), 2: (0.0, 10.0), 3: (100.0, 230.0)}, "fire": {1: (400.0, 10.0), 2: (100.0, 40.0)}}
    shown = result(returns, kept=kept)
    assert shown.kept_share("half").mean == pytest.approx(300 / 600)
    assert shown.kept_difference("half", "fire").mean == pytest.approx(70 / 500 - 50 / 500)
    assert shown.kept_share("base").n == 0
    assert math.isnan(result(returns, kept={"half": {1: (-5.0, 10.0)}}).kept_share("half").mean)
    losses = Measure("task_end/loss", smallest=None, sign=-1, kept="previous_loss")
    assert result(losses, kept={"half": {1: (1.0, 2.0)}}).kept_share("half").mean == pytest.approx(1 / math.e)


def test_of_a_loss_less_is_better_and_the_worst_value_stands_for_a_run_that_diverged() -> None:
    stream = replace(STREAM, measure=Measure("task_end/loss", smallest=None, sign=-1, kept="previous_loss"))
    losses = [line | {"task_end/loss": line["online/accuracy"]} for line in lines()]
    (result,) = results_of(stream, losses).values()
    assert result.values["fire"] == {1: -0.4, 2: -0.6}


def test_where_no_loss_is_shown_comparisons_stay_and_nothing_is_equivalent() -> None:
    """Fresh is below base, so a tenth of their difference is no margin."""
    stream = replace(STREAM, measure=Measure("task/return", smallest=None, sign=1, kept="previous_return"))
    returns = {"base": (9, 11), "fresh": (5, 5), "half": (8, 8.1), "fire": (6, 6)}
    rows = [
        line | {"task/return": str(returns[line["row"]][int(line["seed"]) - 1]), "diverged": "False"}
        for line in lines()
    ]
    results = results_of(stream, rows)
    assert results[""].has_loss() is False
    (verdict,) = outcomes_of(stream, results).values()
    assert verdict.effect == pytest.approx(2.05)
    assert verdict.outcome == "better"
    assert math.isnan(verdict.p_equivalence)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of random labels that has ended: a loss in one setting, and in the other base above fresh."""
    study = Study("how_far", 1, tmp_path)
    study.streams = {"labels": replace(STREAM, rates=(), settings={"lost": (), "kept": ()})}
    monkeypatch.setattr(report, "Study", lambda name, workers: study)
    monkeypatch.setattr(how_far_answer, "Study", lambda name, workers: study)
    swap = {"base": "fresh", "fresh": "base"}
    kept = [line | {"setting": "kept", "row": swap.get(line["row"], line["row"])} for line in lines()]
    write_csv(tmp_path / "labels.csv", [line | {"setting": "lost"} for line in lines()] + kept)
    study.write_power("labels", power_of(study.streams["labels"], 0.01, 0.005))
    return study


def test_it_prints_tables_outcomes_and_where_no_loss_is_shown(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["how_far"])
    printed = capsys.readouterr().out
    assert "labels kept shows no loss: fresh minus base is -0.4" in printed
    assert "labels lost shows no loss" not in printed
    assert "| lost | half |  | 2, 0 | 0.5 (0.45 to 0.55) |  | 0.75, 2 | 0.8 to 0.4 | 0.50 |" in printed
    assert "| kept | half |  | 2, 0 | 0.5 (0.45 to 0.55) |  |  | 0.8 to 0.4 | 0.50 |" in printed
    assert "lost half minus fire | 0.3" in printed
    assert "undecided, descriptive, no loss shown" in printed
    outcomes = {line["setting"]: line for line in read_csv(study.folder / "outcomes.csv")}
    assert outcomes["lost"]["loss_shown"] == "True"
    assert outcomes["kept"]["loss_shown"] == "False"


def test_a_stream_that_has_not_ended_has_no_outcomes(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(study.folder / "labels.csv", read_csv(study.folder / "labels.csv")[:-1])
    report.main(["how_far"])
    assert "No outcomes yet: 1 runs are missing." in capsys.readouterr().out
    assert not how_far_figure.ended_results(study)


def test_a_setting_without_a_loss_is_not_drawn(study: Study) -> None:
    results = how_far_figure.ended_results(study)
    assert [*results] == ["random labels, lost"]
    won, kept = how_far_figure.draw(results).axes
    assert kept.get_legend_handles_labels()[1] == ["random labels, lost"]
    line = won.lines[0]
    assert [*line.get_xdata()] == [0.0, 0.5, 1.0]
    assert line.get_ydata() == pytest.approx([0.0, 0.75, 0.0])
    assert len(kept.containers) == len(won.containers)


def test_an_act_that_puts_biases_back_is_an_open_mark_at_the_place_of_the_same_act() -> None:
    stream = replace(STREAM, rows=STREAM.rows | {"half_biases": STREAM.rows["half"]})
    put_back = [line | {"row": "half_biases"} for line in lines() if line["row"] == "half"]
    won, _ = how_far_figure.draw(results_of(stream, lines() + put_back)).axes
    drawn = [line for line in won.lines if line.get_marker() == "o" and len(line.get_xdata())]
    filled, open_mark = drawn
    assert [*filled.get_xdata()] == [0.0, 0.5, 1.0]
    assert [*open_mark.get_xdata()] == [0.5]
    assert open_mark.get_markerfacecolor() == "white"
    assert filled.get_markerfacecolor() != "white"
