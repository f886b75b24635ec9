"""Methods with a state: a run that is interrupted and resumed ends as an undisturbed one, bit for bit."""

from pathlib import Path

import pytest
import torch

import vision.train
from tests.programs import VISION, assert_same, rows, summary

OPTIONS = ("benchmark=continual", "benchmark.chunks=2", "dataset.train_size=512", "model.stages=2")
METHODS = {
    "cbp": ("rate=0.05", "maturity=2"),
    "cbp fire_paper": ("rate=0.05", "maturity=2", "variant=fire_paper"),
    "redo": ("threshold=0.9", "every=2"),
    "snr": ("percentile=0.5", "max_age=200", "every=1"),
    "snr fire_paper": ("percentile=0.5", "max_age=200", "every=2", "variant=fire_paper"),
    "muon": (),
    "c_chain": ("warmup=4", "window=6", "scale=1.0"),
    "l2_er": ("every=4", "lr=0.1"),
    "nap": ("every=2",),
    "spectral": ("coef=0.1",),
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
    calm = VISION.run(tmp_path / "calm", *OPTIONS, *method)
    base = VISION.run(tmp_path / "base", *OPTIONS, *ROUGH.get(name, ()), "method=base")
    assert rows(base)[-1]["train/loss"] != rows(calm)[-1]["train/loss"], "the method did nothing here"
    real, steps, last = vision.train.Loop.advance, 0, rows(calm)[-1]["step"]

    def step_or_cut(*arguments: object) -> None:
        nonlocal steps
        steps += 1
        if steps == last - 1:  # in the last phase, some steps after a checkpoint
            raise Cut
        real(*arguments)

    monkeypatch.setattr(vision.train.Loop, "advance", step_or_cut)
    monkeypatch.setattr(vision.train.Run, "checkpoint_due", property(lambda _: steps % 3 == 0))
    with pytest.raises(Cut):
        VISION.run(tmp_path / "rough", *OPTIONS, *method)
    rough = VISION.run(tmp_path / "rough", *OPTIONS, *method)
    assert_same(rough, calm)


def test_redo_without_recycling_is_base(tmp_path: Path) -> None:
    base = summary(VISION.run(tmp_path, *OPTIONS, "method=base"))
    folder = VISION.run(tmp_path, *OPTIONS, "method=redo", "method.recycle=false", "method.threshold=0.9")
    of_its_own = {"seconds": 0, "rows_sha256": ""}  # the digest begins with the run's identity
    assert summary(folder) | of_its_own == base | of_its_own
    assert all(0 <= row["method/dormant_ratio"] <= 1 for row in rows(folder) if "kind" not in row)
