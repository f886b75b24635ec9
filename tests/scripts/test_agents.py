"""The runs and tables of docs/results/agents.md."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.make_plasticity import filled
from scripts.agents_runs import COLUMNS, Runs, write
from scripts.agents_tables import make_tables, scores, table, tasks_of
from tests.programs import compose

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def frame() -> pd.DataFrame:
    """Two methods, three seeds, six tasks; base loses 10 a task, fire stays."""
    rows = [
        {
            "method": method,
            "seed": seed,
            "task": task,
            "return": 100 + seed - (10 * task if method == "base" else 0),
            "evaluation": 200 + task,
        }
        for method in ("base", "fire")
        for seed in range(3)
        for task in range(6)
    ]
    return pd.DataFrame(rows)


def test_a_score_is_the_mean_of_the_last_third() -> None:
    assert scores(frame(), "base").tolist() == [55.0, 56.0, 57.0]
    assert scores(frame(), "fire").tolist() == [100.0, 101.0, 102.0]


def test_the_best_comes_first() -> None:
    found = table(frame())
    assert found["method"].tolist() == ["fire", "base"]
    assert found["P(better than base)"][0].mean == 1.0
    assert found["P(better than base)"][1] is None
    assert [one.mean for one in found["evaluation, last third"]] == [204.5, 204.5]


def test_games_that_come_round_again_have_a_column_for_each_task() -> None:
    best, other = tasks_of(frame(), ("a", "b", "c")).to_dict("records")
    assert list(other) == ["method", "1: a", "2: b", "3: c", "4: a", "5: b", "6: c"]
    assert [best["method"], *(one.mean for one in list(other.values())[1:])] == ["fire", 101, 91, 81, 71, 61, 51]


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


def test_the_page_has_the_tables_of_its_csv_files() -> None:
    page, tables = (RESULTS / "agents.md").read_text(), make_tables(RESULTS / "agents")
    assert {f"<!-- table: {name} -->" in page for name in tables} == {True}
    assert filled(page, tables) == page


@pytest.mark.slow
def test_the_whole_at_its_smallest_and_again(tmp_path: Path) -> None:
    environment = os.environ | {"RUNS": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command, made = ["bash", str(ROOT / "scripts/agents.sh"), "smoke"], []
    for _ in range(2):
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "fire_head_kept" in said.stdout
        made.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.jsonl")})
    assert made[0] == made[1], "a finished run was trained again"
