"""Damage to a run's files costs time: the checkpoint before is used, or training begins again.

Each case damages a finished run, or one that has lost its mark DONE, starts the program again and compares with the run
as it was, row for row and bit for bit.
"""

import json
import shutil
from pathlib import Path

import pytest

from analysis.runs import Run
from analysis.sources import folders
from harness.run import checkpoint
from tests.programs import SMALL, assert_same

OPTIONS = ("method=redo", "cache=off")
DAMAGE = ("bit", "rows short", "all checkpoints", "a byte of the first row", "a digit of a row")
NO_SUMMARY = (
    "{}", "[]", "null", "3", '"text"', "", "{", '{"test/accuracy": null, "seconds": 1}', '{"test/accuracy": 0.5}',
    '{"seconds": 1.5}', '{"test/accuracy": "0.5", "seconds": 1}',
)  # fmt: skip


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
    elif kind == "a byte of the first row":
        rows = bytearray(metrics.read_bytes())
        rows[1] = 1
        metrics.write_bytes(rows)
    elif kind == "a digit of a row":  # which is as good JSON as before
        rows = metrics.read_text()
        metrics.write_text(rows.replace("0.", "1.", 1))
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


def copy(finished: Path, tmp_path: Path) -> Path:
    """A run's folder that may be damaged."""
    folder = tmp_path / "vision" / finished.name
    shutil.copytree(finished, folder)
    return folder


# Any text but its own is refused by its checksum, if it is the text of a JSON object.
@pytest.mark.parametrize(
    ("text", "has_checksums"), [*((text, False) for text in NO_SUMMARY), *((text, True) for text in ("{", "[]", "{}"))]
)
def test_a_mark_that_is_no_summary_marks_nothing(
    text: str, has_checksums: bool, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy(finished, tmp_path)
    (folder / "DONE").write_text(text)
    if not has_checksums:
        (folder / "checksums.json").unlink()
    SMALL.run(tmp_path, *OPTIONS)
    assert_same(folder, finished)
    assert "is damaged: training it again (" in caplog.text
    assert set(json.loads((folder / "DONE").read_text())) == set(json.loads((finished / "DONE").read_text()))


@pytest.mark.parametrize("kind", ["a byte of the first row", "a digit of a row", "rows short"])
def test_a_finished_run_whose_rows_are_damaged_is_trained_again(
    kind: str, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy(finished, tmp_path)
    damage(kind, folder)
    (left_out,) = folders.read(tmp_path)
    assert "metrics.jsonl is not what the run has written: the same command trains it again" in str(left_out)
    SMALL.run(tmp_path, *OPTIONS)
    assert_same(folder, finished)
    assert "is damaged: training it again (metrics.jsonl is not what the run has written)" in caplog.text
    (read,) = folders.read(tmp_path)
    assert isinstance(read, Run)


def test_a_finished_run_of_an_older_version_is_skipped(finished: Path, tmp_path: Path) -> None:
    folder = copy(finished, tmp_path)
    (folder / "checksums.json").unlink()
    before = (folder / "DONE").stat().st_mtime_ns
    SMALL.run(tmp_path, *OPTIONS)
    assert (folder / "DONE").stat().st_mtime_ns == before
    (read,) = folders.read(tmp_path)
    assert isinstance(read, Run)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0\1", '{"earlier": [1]}', '{"step": "x"}', '{"packages": "torch"}'])
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_damaged_record_of_environments_is_named_and_kept(
    text: str, is_finished: bool, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The environments of earlier starts stand nowhere else."""
    folder = copy(finished, tmp_path)
    if not is_finished:
        (folder / "DONE").unlink()
    (folder / "env.json").write_text(text)
    SMALL.run(tmp_path, *OPTIONS)
    assert (folder / "damaged-env.json").read_text() == text
    assert "env.json is damaged and renamed: where earlier rows were trained is not known" in caplog.text
    assert (folder / "env.json").exists() == (not is_finished)
    assert_same(folder, finished)


@pytest.mark.parametrize("name", ["identity.json", "config.yaml", "env.json"])
@pytest.mark.parametrize("text", ["", "[", "\0\1", "[]"])
def test_texts_of_a_finished_run_that_are_damaged_are_written_again(
    name: str, text: str, finished: Path, tmp_path: Path
) -> None:
    folder = copy(finished, tmp_path)
    (folder / name).write_text(text)
    before = (folder / "DONE").stat().st_mtime_ns
    SMALL.run(tmp_path, *OPTIONS)
    assert (folder / "DONE").stat().st_mtime_ns == before, "it is not trained again"
    (read,) = folders.read(tmp_path)
    assert isinstance(read, Run)
    assert read.seed == 0
    if name == "identity.json":
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
