"""A job's record: what it says, and what a full disk leaves of it."""

import json
import os
from pathlib import Path

import pytest

from harness.program.outcome import KILLED, Outcome, record_outcome
from harness.run.lock import SWEEP_LOG
from tests.zygote import Zygote


def test_what_a_full_disk_refuses_leaves_the_line_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWEEP_LOG, str(tmp_path))
    record_outcome(0, Outcome("seed=0", "failed", KILLED))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    record_outcome(0, Outcome("seed=0", "done"))
    assert json.loads((tmp_path / "0.json").read_text())["result"] == KILLED


def test_the_log_says_which_tuned_values_were_taken(tmp_path: Path, zygote: Zygote) -> None:
    few = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4", "epochs=1")
    answer = zygote.run(tmp_path, "vision.train", *few, "benchmark=warm_start", "method=cbp")
    assert answer.err.count("tuned values: conf/tuned/values/warm_start_digits/cbp.yaml") == 1, answer.err
