"""What a study reports, from rows worked by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.estimates import mean
from studies import how_far_figure, report
from studies.driver import Measure, Study, write_csv
from studies.report import Result, kept_share, outcomes_of, results_of
from tests.studies.test_driver import TINY

STREAM = replace(
    TINY, rows=TINY.rows | {"half": ("method=fire", "method.blend=0.5")}, seeds={"*": (1, 2)}, family=[("half", "fire")]
)
# base .2, fresh .6: of the gap of .4 half wins back three quarters and FIRE, whose second run diverged, less.
ACCURACIES = {"base": (0.1, 0.3), "fresh": (0.6, 0.6), "half": (0.45, 0.55), "fire": (0.4, None)}


def lines() -> list[dict[str, str]]:
    return [
        {
            "setting": "",
            "row": row,
            "searched": "",
            "length": "full",
            "seed": str(seed),
            "online/accuracy": "" if value is None else str(value),
            "previous_accuracy_before": "0.8",
            "previous_accuracy_after": "0.8" if row == "base" else "0.4",
        }
        for row, values in ACCURACIES.items()
        for seed, value in enumerate(values, start=1)
    ]


def test_rows_by_hand() -> None:
    (result,) = results_of(STREAM, lines()).values()
    assert result.values["fire"] == {1: 0.4, 2: 0.0}, "a run that diverged has accuracy 0"
    assert result.won_back("half").mean == pytest.approx((0.5 - 0.2) / 0.4)
    assert result.won_back("fire").mean == pytest.approx(0.0)
    assert result.kept["base"] == {1: 1.0, 2: 1.0}
    assert result.kept["half"] == {1: 0.5, 2: 0.5}
    (verdict,) = outcomes_of(STREAM, {"": result}).values()
    assert verdict.effect == pytest.approx(((0.45 - 0.4) + (0.55 - 0.0)) / 2)
    assert verdict.outcome == "undecided"


def test_the_part_won_back_has_an_interval_over_seeds_and_none_of_two() -> None:
    seeds = range(8)
    values = {
        "base": dict.fromkeys(seeds, 0.2),
        "fresh": dict.fromkeys(seeds, 0.6),
        "half": {seed: 0.5 + 0.02 * (-1) ** seed for seed in seeds},
    }
    part = Result(values, {}).won_back("half")
    spread = mean([(value - 0.2) / 0.4 for value in values["half"].values()])  # the gap is the same at each seed
    assert part.mean == pytest.approx(spread.mean)
    assert (part.low, part.high) == pytest.approx((spread.low, spread.high), abs=0.01)
    two = Result({row: {seed: given[seed] for seed in (0, 1)} for row, given in values.items()}, {}).won_back("half")
    assert math.isnan(two.low)
    assert two.mean == pytest.approx(0.75)
    assert math.isnan(Result(values | {"half": {99: 0.5}}, {}).won_back("half").mean), "no seed in common"


def test_a_setting_without_a_loss_is_said_so_and_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = replace(STREAM, rates=(), settings={"lost": (), "kept": ()})
    study = Study("how_far", 1, tmp_path)
    study.streams = {"labels": stream}
    monkeypatch.setattr(report, "Study", lambda name, workers: study)
    swap = {"base": "fresh", "fresh": "base"}  # where base is above fresh, nothing is lost
    kept = [line | {"setting": "kept", "row": swap.get(line["row"], line["row"])} for line in lines()]
    write_csv(tmp_path / "labels.csv", [line | {"setting": "lost"} for line in lines()] + kept)
    report.main(["how_far"])
    printed = capsys.readouterr().out
    assert "labels kept shows no loss: fresh minus base is -0.4" in printed
    assert "labels lost shows no loss" not in printed
    assert "| kept | half |  | 2 | 0.5 | 0.45 to 0.55 |  |  | 0.50 |" in printed
    shown = how_far_figure.shown_in(study)
    assert [*shown] == ["random labels, lost"]
    won, _ = how_far_figure.draw(shown).axes
    assert won.get_legend_handles_labels()[1] == ["random labels, lost"]
    line = won.containers[0].lines[0]
    assert [*line.get_xdata()] == [0.0, 0.5, 1.0]
    assert line.get_ydata() == pytest.approx([0.0, 0.75, 0.0])


def test_of_a_loss_less_is_better_and_the_worst_value_stands_for_a_run_that_diverged() -> None:
    stream = replace(STREAM, measure=Measure("task_end/loss", smallest=None, sign=-1, kept="previous_loss"))
    losses = [line | {"task_end/loss": line["online/accuracy"]} for line in lines()]
    (result,) = results_of(stream, losses).values()
    assert result.values["fire"] == {1: -0.4, 2: -0.6}
    assert result.won_back("half").mean == pytest.approx(0.75)
    share = kept_share(stream.measure, {"previous_loss_before": "1.0", "previous_loss_after": "2.0"})
    assert share == pytest.approx(1 / math.e)


def test_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    study = Study("how_far", 1, tmp_path)
    study.streams = {"tiny": replace(STREAM, rates=())}
    monkeypatch.setattr(report, "Study", lambda name, workers: study)
    write_csv(tmp_path / "tiny.csv", lines())
    report.main(["how_far"])
    printed = capsys.readouterr().out
    assert "|  | half |  | 2 | 0.5 | 0.45 to 0.55 | 0.75 |  | 0.50 |" in printed
    assert "half minus fire | 0.3" in printed
    assert "undecided" in (tmp_path / "outcomes.csv").read_text()
