"""`--help` lists what a program can take. The comments of options: tests/harness/config/test_comments.py."""

import re

import pytest

from tests.programs import start_here


def test_help_lists_what_the_program_can_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start_here("vision", ["--help"], monkeypatch) == 0
    shown = capsys.readouterr().out
    groups = dict(line.split(": ", 1) for line in shown.split("== ")[1].splitlines()[1:] if ": " in line)
    assert set(groups) == {
        "method",
        "dataset",
        "model",
        "optimizer",
        "tracker",
        "trigger",
        "benchmark",
        "tuned",
        "experiment",
    }
    listed = " ".join(shown.split("== ")[1].split())
    assert re.search(r"\bbenchmark: class_incremental, continual, ", listed)
    assert re.search(r"\bmethod: adamo, base, ([\w]+, )*chain, ([\w]+, )*weight_decay\b", listed)
    assert "parts_of_chain" not in listed
    assert "cartpole" not in shown
    assert "epochs: ${choose:${scale},{smoke:2,small:40,paper:400}}" in shown, "of the default benchmark"
