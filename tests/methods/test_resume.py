"""Methods with a state: a run that is interrupted and resumed ends as an undisturbed one, bit for bit.

Every method's own state is in `test_options_matter`; here it goes through programs and their folders.
"""

import itertools
import re
from pathlib import Path

import pytest
from torch import Tensor, nn

import vision.train
from tests.programs import VISION, assert_same, final_state, rows


class Headed(nn.Module):
    """A perceptron that names its head, so that plasticity injection can replace it."""

    injectable = ("head",)

    def __init__(self, num_classes: int, in_channels: int, image_size: int, **_: object) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(in_channels * image_size**2, 16), nn.Linear(16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(images.flatten(1)).relu())
        return logits


def test_a_network_with_injected_modules_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The method has put modules into a model of the user's own: a resume puts them there before it loads weights."""
    options = ["method=pi", f"model._target_={__name__}.Headed"]
    calm = VISION.run(tmp_path / "calm", *options)
    assert "head.new.weight" in final_state(calm)["modules"]["model"], "nothing was injected"
    last = rows(calm)[-1]["step"]
    real, steps = vision.train.Loop.advance, itertools.count(1)

    def step_or_cut(*given: object) -> None:
        if (step := next(steps)) == last - 1:  # in the last phase, some steps after a checkpoint
            raise InterruptedError
        real(*given)
        monkeypatch.setattr(vision.train.Run, "checkpoint_due", property(lambda _: step % 3 == 0))

    monkeypatch.setattr(vision.train.Loop, "advance", step_or_cut)
    with pytest.raises(InterruptedError):
        VISION.run(tmp_path / "rough", *options)
    caplog.clear()
    with caplog.at_level("INFO"):
        rough = VISION.run(tmp_path / "rough", *options)
    (resumed,) = (int(step) for step in re.findall(r"resumed at step (\d+)", caplog.text))
    assert resumed > last - 6, "the newest checkpoint could not be loaded"
    assert_same(rough, calm)
