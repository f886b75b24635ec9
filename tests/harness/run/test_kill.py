"""kill -9 at any moment, start the same command again: the numbers are those of an undisturbed run, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills import STORMS
from tests.programs import Record

KILLS = 12


@pytest.mark.slow
@pytest.mark.parametrize("program", STORMS)
def test_any_number_of_kills_changes_nothing(program: str, tmp_path: Path, record_property: Record) -> None:
    command = [sys.executable, "-m", "tests.kills", program, str(tmp_path), str(KILLS)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    made = json.loads(answer.stdout.splitlines()[-1])
    assert made["kills"] >= KILLS
    assert made["writing"] >= 1
    record_property(f"kills of {program} survived bit for bit", made["kills"])
    record_property("of them while a checkpoint or a part of the replay was being written", made["writing"])
    record_property("of them in the shared first phase", made["first"])
