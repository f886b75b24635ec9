"""scripts/compare_scales.py at its smallest size."""

import subprocess
import sys
from pathlib import Path

import pytest

from fire_core.reinit.scales import SCALES

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_scales.py"


@pytest.mark.slow
def test_it_prints_a_row_for_every_scale_of_both_networks() -> None:
    command = [sys.executable, SCRIPT, "--seeds", "1", "--epochs", "2"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(("| plain", "| layer norm"))]
    assert [row[1] for row in rows] == [*("fresh network", "untouched", *SCALES)] * 2
    untouched = [row for row in rows if row[1] == "untouched"]
    assert all(row[5].strip(" |") == row[6].strip(" |") for row in untouched)  # nothing was projected


def test_it_refuses_a_bad_size_in_one_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--seeds", "0"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: --seeds must be at least 1 and --epochs at least 2\n"
