"""docs/architecture.md follows one weight from the command to the Newton-Schulz step: these are the files."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRACE = """
import sys, traceback
from pathlib import Path

import fire_core.polar.steps as steps
from vision.train import main

root = Path(sys.argv.pop(1))
take = steps.take


def traced(*arguments, **options):
    files = dict.fromkeys(Path(frame.filename) for frame in traceback.extract_stack())
    inside = [str(file.relative_to(root)) for file in files if file.is_relative_to(root)]
    print("WAY " + " ".join(inside))
    return take(*arguments, **options)


steps.take = traced
main()
"""


def test_the_way_of_a_weight_takes_the_files_that_the_page_lists(tmp_path: Path) -> None:
    options = ["method=fire", "scale=smoke", "tracker=none", "cache=off", "progress=false"]
    command = [sys.executable, "-c", TRACE, str(ROOT), *options, f"paths.runs={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    way = next(line for line in done.stdout.splitlines() if line.startswith("WAY ")).split()[1:]
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", page, re.MULTILINE)
    wrappers = {"harness/config/cli.py"}  # around `main`, for errors
    assert [file for file in way if file not in wrappers] == listed
    assert len(listed) <= 8
