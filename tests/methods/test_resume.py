"""Methods with a state: a run that is interrupted and resumed ends as an undisturbed one, bit for bit.

Every method's own state is in `test_options_matter`; here it goes through programs and their folders.
"""

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import vision.train
from tests.programs import VISION, assert_same, final_state, rows

OPTIONS = ("benchmark=continual", "benchmark.chunks=2", "dataset.train_size=512", "model.stages=2")


class Headed(nn.Module):
    """A perceptron that names its head, so that plasticity injection can replace it."""

    injectable = ("head",)

    def __init__(self, num_classes: int, in_channels: int, image_size: int, **_: object) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(in_channels * image_size**2, 16), nn.Linear(16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(images.flatten(1)).relu())
        return logits


class Cut(Exception):
    """The end of the first process."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def cut_before_end(monkeypatch: pytest.MonkeyPatch, trainer: ModuleType, last: int) -> None:
    """Checkpoint at each third step, and raise a `Cut` some steps after the last checkpoint, in the last phase."""
    real, steps = trainer.Loop.advance, 0

    def step_or_cut(*arguments: object) -> None:
        nonlocal steps
        steps += 1
        if steps == last - 1:
            raise Cut
        real(*arguments)

    monkeypatch.setattr(trainer.Loop, "advance", step_or_cut)
    monkeypatch.setattr(trainer.Run, "checkpoint_due", property(lambda _: steps % 3 == 0))


def test_a_network_with_injected_modules_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The method has put modules into a model of the user's own: a resume puts them there before it loads weights."""
    options = ["method=pi", f"model._target_={__name__}.Headed"]
    calm = VISION.run(tmp_path / "calm", *options)
    assert "head.new.weight" in final_state(calm)["modules"]["model"], "nothing was injected"
    last = rows(calm)[-1]["step"]
    cut_before_end(monkeypatch, vision.train, last)
    with pytest.raises(Cut):
        VISION.run(tmp_path / "rough", *options)
    caplog.clear()
    with caplog.at_level("INFO"):
        rough = VISION.run(tmp_path / "rough", *options)
    (resumed,) = (int(step) for step in re.findall(r"resumed at step (\d+)", caplog.text))
    assert resumed > last - 6, "the newest checkpoint could not be loaded"
    assert_same(rough, calm)
