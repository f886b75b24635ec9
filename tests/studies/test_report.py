"""What a study reports, from rows worked by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from studies import report
from studies.driver import Measure, Study, write_csv
from studies.report import kept_share, outcomes_of, results_of
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
    assert result.won_back("half") == pytest.approx((0.5 - 0.2) / 0.4)
    assert result.won_back("fire") == pytest.approx(0.0)
    assert result.kept == pytest.approx({"base": 1.0, "fresh": 0.5, "half": 0.5, "fire": 0.5})
    (verdict,) = outcomes_of(STREAM, {"": result}).values()
    assert verdict.effect == pytest.approx(((0.45 - 0.4) + (0.55 - 0.0)) / 2)
    assert verdict.outcome == "undecided"


def test_of_a_loss_less_is_better_and_the_worst_value_stands_for_a_run_that_diverged() -> None:
    stream = replace(STREAM, measure=Measure("task_end/loss", smallest=None, sign=-1, kept="previous_loss"))
    losses = [line | {"task_end/loss": line["online/accuracy"]} for line in lines()]
    (result,) = results_of(stream, losses).values()
    assert result.values["fire"] == {1: -0.4, 2: -0.6}
    assert result.won_back("half") == pytest.approx(0.75)
    share = kept_share(stream.measure, {"previous_loss_before": "1.0", "previous_loss_after": "2.0"})
    assert share == pytest.approx(1 / math.e)


def test_it_prints_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study("how_far", 1, tmp_path)
    study.streams = {"tiny": STREAM}
    monkeypatch.setattr(report, "Study", lambda name, workers: study)
    write_csv(tmp_path / "tiny.csv", lines())
    report.main(["how_far"])
    printed = capsys.readouterr().out
    assert "|  | half | 2 | 0.5 | 0.45 to 0.55 | 0.75 | 0.50 |" in printed
    assert "half minus fire | 0.3" in printed
    assert (tmp_path / "how_far.png").stat().st_size > 10_000
    assert "undecided" in (tmp_path / "outcomes.csv").read_text()
