"""The runs of docs/results/agents.md."""

import csv
from pathlib import Path

import pytest

from scripts.agents_runs import COLUMNS, Runs, write
from tests.programs import compose
from tests.zygote import Zygote


def test_a_method_s_rows_take_the_place_of_its_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    one = dict.fromkeys(COLUMNS, 1.0)
    write(path, "base", [one | {"method": "base"}])
    write(path, "fire", [one | {"method": "fire"}] * 2)
    write(path, "base", [one | {"method": "base"}] * 3)
    with path.open(newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["fire"] * 2 + ["base"] * 3


def test_every_method_takes_the_trigger_where_there_is_no_boundary(tmp_path: Path) -> None:
    """So that optimizer and temperature restart for base as they do for its rivals."""
    runs = Runs("high_replay_ratio_cheetah", tmp_path, tmp_path, smoke=False)
    for method in ("base", "redo", "fire", "fire_head_kept"):
        config = compose("sac", *runs.options_of(method, "runs"))
        assert (config.trigger.name, config.trigger.steps) == ("every", 1000)
        assert config.benchmark.boundaries == "hidden"


@pytest.mark.slow
def test_the_whole_at_its_smallest_and_again(tmp_path: Path, zygote: Zygote) -> None:
    made = []
    for _ in range(2):
        assert "fire_head_kept" in zygote.script(tmp_path, "scripts/agents.sh", "smoke", RUNS=str(tmp_path))
        made.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.jsonl")})
    assert made[0] == made[1], "a finished run was trained again"
