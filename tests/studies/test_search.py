"""What a search tries next and chooses, and the power of the report that follows it."""

from dataclasses import replace
from pathlib import Path

import pytest

from studies.search import best_point, next_rate, power_of
from studies.streams import SEARCH_SEEDS, Point
from studies.tables import Key, Table
from studies.verdict import power
from tests.studies.test_driver import TINY


def test_a_search_goes_on_at_the_edge_of_the_best_coefficients_alone() -> None:
    points = [Point(rate, options) for options in (("a=1",), ("a=2",)) for rate in (0.1, 0.14)]
    assert next_rate(points, Point(0.14, ("a=2",))) == [Point(0.196, ("a=2",))]
    assert next_rate(points, Point(0.1, ("a=1",))) == [Point(0.0714, ("a=1",))]
    assert next_rate([*points, Point(0.0714, ("a=1",))], Point(0.1, ("a=1",))) == []


def test_a_row_of_which_every_run_diverged_ends_the_search(tmp_path: Path) -> None:
    table = Table(tmp_path / "table.csv", "")
    for seed in SEARCH_SEEDS:
        table.lines[Key("", "base", "lr=0.001", "prefix", seed)] = {"diverged": True}
    with pytest.raises(SystemExit, match="every run of the search of base diverged"):
        best_point(TINY, table, "", "base", [Point(1e-3)], "prefix")


def test_each_comparison_has_the_power_of_its_own_seeds() -> None:
    wide = replace(
        TINY,
        seeds=dict.fromkeys(("fire", "base"), range(60)) | {"*": range(10)},
        family=[("fire", "base"), ("fire", "fresh")],
    )
    numbers = power_of(wide, smallest=0.01, spread=0.02)
    assert numbers["comparisons"] == 2
    assert [(pair["rival"], pair["seeds"]) for pair in numbers["pairs"]] == [("base", 60), ("fresh", 10)]
    assert [pair["power"] for pair in numbers["pairs"]] == [power(0.02, 0.02, seeds, 2) for seeds in (60, 10)]
    assert [pair["descriptive"] for pair in numbers["pairs"]] == [False, True]
    assert all(pair["descriptive"] for pair in power_of(wide, smallest=-0.01, spread=0.001)["pairs"]), "no loss"
