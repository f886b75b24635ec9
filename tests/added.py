"""What must hold of methods that were just added to a copy of this project; tests/test_extend.py runs it in the copy.

`halve` acts at boundaries, `shrink_step` after each step. `wide`, `rings`, `mirrored` and `high_loss` are a model, a
data set, a stream and a trigger.
"""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from analysis.make_figures import main as make_figures
from tests.programs import compose, rows, start_here, summary
from tests.test_every_method import PROGRAMS

ADDED = ("method=halve", "method=shrink_step", "method=chain method.of=halve+shrink_step+l2init")
FEW = ("scale=smoke", "tracker=none", "progress=false", "benchmark.tasks=2", "model.hidden=8")


@pytest.mark.parametrize("program", PROGRAMS)
def test_methods_run_in_every_program(program: str, tmp_path: Path) -> None:
    smallest, few = PROGRAMS[program]
    for number, options in enumerate(ADDED):
        folder = smallest.run(tmp_path / str(number), *few, *options.split())
        assert summary(folder)
        assert {row["phase"] for row in rows(folder)} == {0, 1}


def test_a_chain_takes_the_options_of_its_parts_and_shows_no_others() -> None:
    config = compose(
        "vision", "method=chain", "method.of=halve+l2init", "method.parts.halve.factor=0.25", "benchmark=warm_start"
    )
    assert OmegaConf.to_container(config.method.parts.halve) == {
        "_target_": "fire_core.methods.halve.Halve",
        "name": "halve",
        "factor": 0.25,
    }
    assert set(config.method.parts) == {"halve", "l2init"}


def test_sweeps_then_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chains = ("method=chain", "method.of=halve+l2init,shrink_step+muon", "method.parts.halve.factor=0.25")
    for options in (
        ("method=base,halve,shrink_step", "model=wide", "dataset=rings", "benchmark.samples=64"),
        (*chains, "benchmark.samples=64"),
        ("method=halve", "benchmark=mirrored", "epochs=1", "trigger=boundary,high_loss"),
    ):
        code = start_here("vision", (*FEW, *options, "-m"), monkeypatch)
        assert code == (2 if "method=chain" in options else 0)
    assert len(list((tmp_path / "runs/vision").iterdir())) == 3 + 1 + 2
    assert make_figures(["--runs", str(tmp_path / "runs/vision"), "--out", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / "random_labels-rings-wide.png").exists()


@pytest.mark.parametrize("program", ["vision", "language", "dqn", "sac"])
def test_the_help_names_them(program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert start_here(program, ("method=shrink_step", "--help"), monkeypatch) == 0
    shown = capsys.readouterr().out
    groups = " ".join(shown.split("== ")[1].split())
    for group, name in (("method", "halve"), ("method", "shrink_step"), ("trigger", "high_loss")):
        assert re.search(rf"\b{group}: ([\w]+, )*{name}\b", groups), name
    assert "rate: 0.0001" in shown
