"""Checkpoints: whole or absent, and never code."""

import logging
import os
import pickle
from pathlib import Path

import pytest
import torch

from harness.config.errors import ConfigError, TrainingError
from harness.run import checkpoint
from harness.run.folder import Run

CONFIG = {"lr": 0.1, "model": {"width": 4}}


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pt"))


def test_the_newest_two_stay_and_the_newest_is_loaded(tmp_path: Path) -> None:
    for step in (1, 20, 3):
        checkpoint.save(tmp_path, step, {"value": torch.tensor(step)}, CONFIG)
    assert len(files(tmp_path)) == 2
    loaded = checkpoint.load_newest(tmp_path, CONFIG)
    assert loaded is not None
    assert loaded["value"] == 20


def test_a_checkpoint_of_another_version_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    checkpoint.save(tmp_path, 1, {}, CONFIG)
    monkeypatch.undo()
    assert checkpoint.load_newest(tmp_path, CONFIG) is None


@pytest.mark.parametrize("damage", ["truncated", "flipped bit", "empty"])
def test_a_damaged_newest_is_named_and_the_one_before_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"value": torch.tensor(step)}, CONFIG)
    newest = files(tmp_path)[-1]
    data = bytearray(newest.read_bytes())
    if damage == "flipped bit":
        data[len(data) // 2] ^= 1
    newest.write_bytes({"truncated": data[:-10], "flipped bit": data, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        loaded = checkpoint.load_newest(tmp_path, CONFIG)
    assert loaded == {"value": torch.tensor(1)}
    assert newest.name in caplog.text


def test_one_of_another_run_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = {"lr": 0.1, "model": {"width": 8}}
    checkpoint.save(tmp_path, 1, {"x": 1}, mine)
    checkpoint.save(tmp_path, 9, {"x": 9}, CONFIG)
    assert checkpoint.load_newest(tmp_path, mine) == {"x": 1}
    assert "it is of another run" in caplog.text
    checkpoint.save(tmp_path, 2, {"x": 2}, mine, keep=1)
    assert checkpoint.load_newest(tmp_path, mine) == {"x": 2}, "the other one did not take its place"


class Hostile:
    """Unpickled, it would make a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_code_in_a_file_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark, folder = tmp_path / "it ran", tmp_path / "checkpoints"
    real = torch.save
    try:  # the right name and checksum, so that only safe loading stands between the file and its code
        checkpoint.torch.save = lambda content, file: file.write(pickle.dumps({**content, "state": Hostile(mark)}, 2))
        checkpoint.save(folder, 1, {}, CONFIG)
    finally:
        checkpoint.torch.save = real
    assert checkpoint.load_newest(folder, CONFIG) is None
    assert not mark.exists()
    assert "cannot be used" in caplog.text


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    leftovers = [folder / ".identity.json.7.tmp", folder / "checkpoints" / ".step-000000000001-ab.pt.7.tmp"]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    with Run(folder, CONFIG, "") as run:
        assert run.resume() is None
    assert not any(path.exists() for path in leftovers)


@pytest.mark.parametrize("change", ["removed", "cut", "longer"])
def test_rows_that_someone_else_changes_end_in_no_checkpoint_and_are_written_again(change: str, tmp_path: Path) -> None:
    def train(run: Run, disturbed: bool) -> None:
        start = (run.resume() or {"step": 0})["step"]
        for step in range(start + 1, 5):
            run.log({"step": step})
            run.checkpoint(step, {"step": step})
            if step == 2 and disturbed:
                metrics = run.folder / "metrics.jsonl"
                rows = metrics.read_text()
                metrics.unlink() if change == "removed" else metrics.write_text(rows * 2 if change == "longer" else "")

    with pytest.raises(OSError, match="the rows cannot be written"), Run(tmp_path, CONFIG, "") as run:
        train(run, True)
    with Run(tmp_path, CONFIG, "") as run:
        train(run, False)
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(f'{{"step": {step}}}\n' for step in range(1, 5))


def test_a_state_that_does_not_fit_is_one_line() -> None:
    with pytest.raises(TrainingError, match=r"cannot be loaded \(KeyError: 'q'\).*\Z"), checkpoint.loading():
        {}["q"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with Run(tmp_path, CONFIG, ""), pytest.raises(ConfigError, match="is being trained by another process"):
        Run(tmp_path, CONFIG, "").__enter__()
    with Run(tmp_path, CONFIG, ""):
        """The first one has left."""
