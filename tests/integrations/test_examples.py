"""Each example runs as it stands, is short, and stands in the documentation."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "torch_loop": ("torch", "step 100: DfI"),
    "accelerate_loop": ("accelerate", "fire/dfi_after"),
    "timm_model": ("timm", "matrices projected by exact"),
    "lightning_tasks": ("lightning", "3 optimizer states reset"),
    "lightning_trainer": ("lightning", "max_epochs=10"),
    "transformers_trainer": ("transformers", "[q]"),
    "stable_baselines3_dqn": ("stable_baselines3", "q_net.0.weight"),
    "torchrl_trainer": ("torchrl", "matrices projected by exact"),
}


def test_every_example_is_tested_short_and_shown():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)
    page = (ROOT / "docs/in_your_loop.md").read_text()
    for name in EXAMPLES:
        text = (ROOT / "examples" / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 40, name
        body = text.split("\n\n", 1)[1].strip()
        assert body in page, f"{name}: docs/in_your_loop.md shows another text"


def test_the_example_in_torch_alone(capsys):
    runpy.run_path(str(ROOT / "examples/torch_loop.py"))
    assert "step 100: DfI" in capsys.readouterr().out


@pytest.mark.slow  # most of their time is that of imports
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "torch_loop"])
def test_an_example_runs(name, tmp_path):
    package, word = EXAMPLES[name]
    pytest.importorskip(package)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert word in done.stdout + done.stderr
    if name == "lightning_trainer":
        assert "fire/dfi_after" in next(tmp_path.glob("logs/**/metrics.csv")).read_text()
