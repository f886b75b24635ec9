"""Methods with a state: a run that is cut and goes on ends as one that was left alone, bit for bit."""

from pathlib import Path

import pytest
import torch

import vision.train
from tests.harness.runner import final_state, only_run, rows, run, same

OPTIONS = ("benchmark=continual", "benchmark.chunks=2", "dataset.train_size=512", "model.stages=2")
METHODS = {
    "cbp": ("rate=0.05", "maturity=2"),
    "cbp fire_paper": ("rate=0.05", "maturity=2", "variant=fire_paper"),
    "redo": ("threshold=0.9", "every=2"),
    "snr": ("percentile=0.5", "max_age=200", "every=1"),
    "snr fire_paper": ("percentile=0.5", "max_age=200", "every=2", "variant=fire_paper"),
    "muon": (),
    "dash": ("variant=step", "every=3", "alpha=0", "rate=1.0"),
}

ROUGH = {"snr": ("batch_size=32", "lr=1.0")}  # units do fall silent then


class Cut(Exception):
    """The end of the first process."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", METHODS)
def test_cut_and_go_on(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = case.split()[0]
    method = [f"method={name}", *(f"method.{option}" for option in METHODS[case]), *ROUGH.get(name, ())]
    calm = run(*OPTIONS, *method, f"paths.runs={tmp_path / 'calm'}")
    base = run(*OPTIONS, *ROUGH.get(name, ()), "method=base", f"paths.runs={tmp_path / 'base'}")
    assert base["train/loss"] != calm["train/loss"], "the method did nothing here"
    real, steps = vision.train.train_step, 0

    def step_or_cut(*arguments: object) -> None:
        nonlocal steps
        steps += 1
        if steps == calm["steps"] - 1:  # in the last phase, some steps after a checkpoint
            raise Cut
        real(*arguments)

    monkeypatch.setattr(vision.train, "train_step", step_or_cut)
    monkeypatch.setattr(vision.train.Run, "checkpoint_due", property(lambda _: steps % 3 == 0))
    with pytest.raises(Cut):
        run(*OPTIONS, *method, f"paths.runs={tmp_path / 'rough'}")
    rough = run(*OPTIONS, *method, f"paths.runs={tmp_path / 'rough'}")
    assert rough["test/accuracy"] == calm["test/accuracy"]
    one, other = only_run(tmp_path / "calm"), only_run(tmp_path / "rough")
    assert rows(one) == rows(other)
    assert same(final_state(one), final_state(other))


def test_redo_without_recycling_is_base(tmp_path: Path) -> None:
    options = (*OPTIONS, f"paths.runs={tmp_path}")
    base = run(*options, "method=base")
    measured = run(*options, "method=redo", "method.recycle=false", "method.threshold=0.9")
    assert {key: base[key] for key in base if key != "seconds"} == {
        key: measured[key] for key in measured if key != "seconds"
    }
    (folder,) = (tmp_path / "vision").glob("*-redo-*")
    assert all(0 <= row["method/dormant_ratio"] <= 1 for row in rows(folder))
