"""Damage to a run's files costs time: the checkpoint before is used, or training begins again.

Each case damages a finished run that has lost its mark DONE, starts the program again and compares with the run as it
was, row for row and bit for bit.
"""

import shutil
from pathlib import Path

import pytest

from harness.run import checkpoint
from tests.programs import SMALL, assert_same

OPTIONS = ("method=redo", "cache=off")
DAMAGE = ("bit", "rows short", "all checkpoints")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoints are those of both phases' ends, as in a run that was killed before it was marked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "remove_old", lambda folder, keep: None)
        return SMALL.run(tmp_path_factory.mktemp("finished"), *OPTIONS)


def damage(kind: str, folder: Path) -> None:
    before, newest = sorted((folder / "checkpoints").glob("step-*.pt"))
    metrics = folder / "metrics.jsonl"
    content = bytearray(newest.read_bytes())
    if kind == "bit":
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    elif kind == "rows short":
        metrics.write_bytes(metrics.read_bytes()[:-5])
    else:
        for path in (before, newest):
            path.write_bytes(b"")


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_costs_time_alone(kind: str, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "vision" / finished.name
    shutil.copytree(finished, folder)
    (folder / "DONE").unlink()
    damage(kind, folder)
    SMALL.run(tmp_path, *OPTIONS)
    assert_same(folder, finished)
    assert "cannot be used (" in caplog.text
    assert list((folder / "checkpoints").glob("damaged-*")), "it does not take a whole one's place"
