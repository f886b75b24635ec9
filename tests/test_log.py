"""docs/log.md: the recipe that brings back the last tree with what was taken out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the recipe needs the repository's history")
def test_the_full_tree_comes_back_and_stacks_seeds(tmp_path: Path) -> None:
    """The commands as they stand, but for the environment: this one has all that it needs."""
    block = re.search(r"^## The full tree.*?```\n(.*?)```", (ROOT / "docs/log.md").read_text(), re.S | re.M)
    assert block is not None
    worktree, venv, install, run = block[1].strip().split("\n")
    assert venv == "python -m venv ../fire-v0.2-full/.venv"
    assert install.endswith('/.venv/bin/pip install -e "../fire-v0.2-full[harness]"')
    run = run.replace(".venv/bin/python", sys.executable)
    command = f"git clone -q {ROOT} clone && cd clone && {worktree} && {run}"
    small = "scale=smoke tracker=none progress=false epochs=1 benchmark.tasks=2 benchmark.samples=64 stack=2"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "fire-v0.2-full"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command.replace("stack=20", small), shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "fire-v0.2-full").glob("runs/vision/*/DONE"))) == 4
