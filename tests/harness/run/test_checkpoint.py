"""Checkpoints: whole or absent, and never code."""

import logging
import os
import pickle
from pathlib import Path

import pytest
import torch

from fire_core.harness.options.errors import ConfigError
from fire_core.harness.run import checkpoint

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


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "absent", CONFIG) is None


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


def test_another_config_is_refused_with_the_keys(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {}, CONFIG)
    with pytest.raises(ConfigError, match=r"model\.width \(4 against 8\)"):
        checkpoint.load_newest(tmp_path, {"lr": 0.1, "model": {"width": 8}})


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
    assert "damaged" in caplog.text


def test_leftovers_of_a_killed_process_are_swept_out(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {}, CONFIG)
    (tmp_path / ".step-2.pt.99.tmp").write_bytes(b"half")
    checkpoint.load_newest(tmp_path, CONFIG)
    assert not list(tmp_path.glob(".*.tmp"))
