"""Damage to a run's files costs time: the checkpoint before is used, or training begins again.

Each case damages a finished run that has lost its mark DONE, starts the program again and compares with the run as it
was, row for row and bit for bit.
"""

import shutil
from pathlib import Path

import pytest

from tests.programs import SMALL, assert_same

OPTIONS = ("method=redo", "cache=off")
DAMAGE = ("truncated", "bit", "empty", "other run", "rows short", "no rows", "all checkpoints")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run and one of another seed."""
    folder = tmp_path_factory.mktemp("finished")
    return SMALL.run(folder, *OPTIONS), SMALL.run(folder, *OPTIONS, "seed=1")


def damage(kind: str, folder: Path, other: Path) -> None:
    before, newest = sorted((folder / "checkpoints").glob("step-*.pt"))
    metrics = folder / "metrics.jsonl"
    content = bytearray(newest.read_bytes())
    if kind in ("truncated", "bit", "empty"):
        content[len(content) // 2] ^= 1
        newest.write_bytes({"truncated": content[:-10], "bit": content, "empty": b""}[kind])
    elif kind == "other run":
        for foreign in (other / "checkpoints").iterdir():
            shutil.copy(foreign, newest.with_name(foreign.name.replace("step-0000", "step-9999")))
    elif kind == "rows short":
        metrics.write_bytes(metrics.read_bytes()[:-5])
    elif kind == "no rows":
        metrics.unlink()
    else:
        for path in (before, newest):
            path.write_bytes(b"")


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_costs_time_alone(
    kind: str, finished: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, other = finished
    folder = tmp_path / "vision" / run.name
    shutil.copytree(run, folder)
    (folder / "DONE").unlink()
    damage(kind, folder, other)
    SMALL.run(tmp_path, *OPTIONS)
    assert_same(folder, run)
    assert "cannot be used (" in caplog.text
    assert list((folder / "checkpoints").glob("damaged-*")), "it does not take a whole one's place"
