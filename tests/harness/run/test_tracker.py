"""A user's own tracker, which may raise and which a finished run does not need."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.run.folder import Run
from harness.run.tracker import Tracker, wandb_id


class Own(Tracker):
    """Notes what it is called for, and raises where it is told to."""

    def __init__(self, raises_in: str = "") -> None:
        self.raises_in, self.events = raises_in, list[str]()

    def _note(self, event: str) -> None:
        self.events.append(event)
        if event == self.raises_in:
            raise ConnectionError("the server\nis gone")

    def start(self, folder: Path, config: dict[str, Any]) -> None:
        self._note("start")

    def log(self, row: dict[str, Any]) -> None:
        self._note("log")

    def finish(self) -> None:
        self._note("finish")


def train(folder: Path, tracker: Tracker) -> None:
    with Run(folder, {"seed": 0}, "", tracker) as run:
        if run.done is None:
            run.resume()
            run.append_rows(json.dumps({"step": 1}) + "\n")
            run.log({"step": 2})
            run.finish({"steps": 2, "seconds": 0.0})


@pytest.mark.parametrize(
    ("raises_in", "events"),
    [
        ("", ["start", "log", "log", "finish"]),
        ("start", ["start"]),
        ("log", ["start", "log"]),
        ("finish", ["start", "log", "log", "finish"]),
    ],
)
def test_one_that_raises_costs_the_mirror_alone(
    raises_in: str, events: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = Own(raises_in)
    train(tmp_path, own)
    assert own.events == events, "it is called no more"
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert (tmp_path / "DONE").exists()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = (
        "tracker Own stopped (ConnectionError: the server is gone): training continues, metrics.jsonl is complete"
    )
    assert warnings == ([expected] if raises_in else [])


def test_one_of_a_run_that_is_done_is_neither_started_nor_finished(tmp_path: Path) -> None:
    """The tracker of docs/extend.md opens its file in `start`, and closes it in `finish`."""
    train(tmp_path, Own())
    own = Own()
    train(tmp_path, own)
    assert own.events == []


def test_a_run_keeps_its_id_in_wandb_and_one_that_is_trained_anew_gets_another(tmp_path: Path) -> None:
    """Online, wandb drops rows that it has: under an old id a new run's numbers would stand beside old ones."""
    first, second = wandb_id(tmp_path), wandb_id(tmp_path)
    assert first != second, "nothing was logged yet"
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert wandb_id(tmp_path) == wandb_id(tmp_path) == second
    assert second.startswith(tmp_path.name[-55:])
    (tmp_path / "metrics.jsonl").write_text("")
    assert wandb_id(tmp_path) != second
