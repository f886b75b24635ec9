"""The project stays as small as tests/budget.json says: only a change that names its reason raises a number there."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_source_and_tests_stay_within_their_budget() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git here: which files belong to the project is not known")
    files = {name: (ROOT / name).read_text() for name in listed.stdout.split() if (ROOT / name).exists()}
    for room, limits in json.loads((ROOT / "tests" / "budget.json").read_text()).items():
        texts = [text for name, text in files.items() if name.startswith("tests/") == (room == "tests")]
        found = {"lines": sum(text.count("\n") for text in texts), "characters": sum(map(len, texts))}
        assert {kind: found[kind] for kind in limits if found[kind] > limits[kind]} == {}, f"{room} has grown"
