"""Rows come back from TensorBoard's files as they were written, once each, after a resume too."""

import json
import sys

import pytest

from harness.config.errors import ConfigError
from harness.run.tensorboard import TensorBoard


def test_every_number_once(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows = [{"step": 5, "train/loss": 2.5, "phase": 0}, {"step": 9, "train/loss": 1.5, "kind": "boundary"}]
    for part in (rows[:1], rows[1:]):
        tracker = TensorBoard()
        tracker.start(tmp_path, {})
        for row in part:
            with (tmp_path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            tracker.log(row)
        tracker.finish()
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [(5, 2.5), (9, 1.5)]
    assert found.Tags()["scalars"] == ["train/loss", "phase"]


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        TensorBoard()
