"""Each example runs as it stands, is short, and stands in the documentation."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "torch_loop": ("torch", "step 100: DfI"),
    "accelerate_loop": ("accelerate", "fire/dfi_after"),
    "timm_model": ("timm", "matrices projected by exact"),
    "lightning_tasks": ("lightning", "3 optimizer states reset"),
    "lightning_trainer": ("lightning", ""),  # its logger is looked at
    "transformers_trainer": ("transformers", "[q]"),
    "stable_baselines3_dqn": ("stable_baselines3", "q_net.0.weight"),
    "torchrl_trainer": ("torchrl", "matrices projected by exact"),
}


def test_every_example_is_tested_short_and_shown():
    # tests/test_tutorial.py has the tutorial.
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, "tutorial"}
    page = (ROOT / "docs/in_your_loop.md").read_text()
    for name in EXAMPLES:
        text = (ROOT / "examples" / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 40, name
        body = text.split("\n\n", 1)[1].strip()
        assert body in page, f"{name}: docs/in_your_loop.md shows another text"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "torch_loop")) for name in EXAMPLES]
)
def test_an_example_runs(name, tmp_path, monkeypatch, capfd):
    package, word = EXAMPLES[name]
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert word in "".join(capfd.readouterr())
    if name == "lightning_trainer":
        assert "fire/dfi_after" in next(tmp_path.glob("logs/**/metrics.csv")).read_text()
