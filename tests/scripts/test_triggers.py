"""The scripts of docs/results/triggers.md: what a false alarm is, a whole small run, and the page's tables."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from scripts.triggers_runs import alarms
from scripts.triggers_tables import correlation, tables
from tests.zygote import ROOT


def test_false_alarms_and_delays() -> None:
    """Four tasks of 100 steps: changes after steps 100, 200 and 300."""
    nothing = {"firings": 0, "false": 0, "missed": 3, "delay": None}
    assert alarms([], 100, 4) == nothing
    assert alarms([100, 200, 300], 100, 4) == {"firings": 3, "false": 0, "missed": 0, "delay": 0}
    found = alarms([50, 100, 130, 250], 100, 4)  # before any change; a second one after the first; none after the third
    assert found == {"firings": 4, "false": 2, "missed": 1, "delay": 25}


def test_rank_correlation() -> None:
    assert correlation(pd.Series([1.0, 5.0, 9.0]), pd.Series([0.1, 0.2, 7.0])) == pytest.approx(1)
    assert correlation(pd.Series([1.0, 2.0, 3.0, 4.0]), pd.Series([4.0, 3.0, 1.0, 2.0])) == pytest.approx(-0.8)
    assert math.isnan(correlation(pd.Series([1.0, 1.0]), pd.Series([1.0, 2.0])))


def test_the_page_has_the_tables_of_the_committed_numbers() -> None:
    assert tables(ROOT / "docs/results/triggers") in (ROOT / "docs/results/triggers.md").read_text()


@pytest.mark.slow
def test_the_whole_at_its_smallest_and_again(tmp_path: Path) -> None:
    environment = os.environ | {"RUNS": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = ["bash", str(ROOT / "scripts/triggers.sh"), "smoke"]
    said = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    assert "| known boundary " in said[0].stdout
    assert said[0].stdout == said[1].stdout
    rows = [json.loads(line) for line in (tmp_path / "triggers/runs.jsonl").read_text().splitlines()]
    keys = [(row["stream"], row["method"], row["when"], row["seed"]) for row in rows]
    assert len(keys) == len(set(keys)) == 52  # 8 arms of one seed and 5 settings of another, of 4 streams
    assert not (tmp_path / "triggers/training").exists()
