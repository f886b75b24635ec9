"""Documents that two corpora of a run share are counted."""

import logging
from pathlib import Path

import pytest

from language import copies
from language.corpora import for_validation
from language.task import Task
from tests.programs import LANGUAGE

OPTIONS = ("dataset=texts", "model.block_size=8", "benchmark.iterations=[4,4]", "benchmark.checkpoints=[2]")


def write(folder: Path, **documents: str) -> Path:
    folder.mkdir()
    for name, content in documents.items():
        (folder / f"{name}.txt").write_text(content)
    return folder


def make_task(tmp_path: Path, tokenizer: str = "byte") -> None:
    places = (f"dataset.first.path={tmp_path / 'first'}", f"dataset.second.path={tmp_path / 'second'}")
    Task.from_config(LANGUAGE.compose(*OPTIONS, *places, f"paths.data={tmp_path}", f"tokenizer={tokenizer}"))


def own(number: int, corpus: str) -> dict[str, str]:
    """Documents of one corpus alone."""
    return {f"{corpus}{i}": f"text {i} of {corpus} alone, and of no other\n" for i in range(number)}


def test_copies_are_counted_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shared = {f"shared{i}": f"document {i} that stands in both of them" for i in range(30)}
    write(tmp_path / "first", **shared, **own(10, "first"))
    renamed = {f"other{name}": f"\n{content}\n" for name, content in shared.items()}  # other names, so other splits
    write(tmp_path / "second", **renamed, **own(10, "second"))
    with caplog.at_level(logging.INFO):
        make_task(tmp_path)
    (line,) = [record.message for record in caplog.records if "stand both in" in record.message]
    assert line.startswith("30 documents stand both in first and in second, word for word; ")
    held_out = [{f"{name}.txt" for name in names if for_validation(f"{name}.txt", 0.1)} for names in (shared, renamed)]
    mixed = sum((f"{name}.txt" in held_out[0]) != (f"other{name}.txt" in held_out[1]) for name in shared)
    assert mixed > 0
    assert f"; {mixed} of them are held out in one and trained on in the other" in line


def test_nothing_is_said_where_there_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "first", **own(20, "first"))
    write(tmp_path / "second", **own(20, "second"))
    make_task(tmp_path)
    assert "stand both" not in caplog.text


def test_a_corpus_that_is_too_large_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_COMPARED_BYTES", 10)
    write(tmp_path / "first", **own(20, "first"))
    write(tmp_path / "second", **own(20, "second"))
    with caplog.at_level(logging.INFO):
        make_task(tmp_path)
    assert "documents of second are not compared with those of the other corpora: it is too large" in caplog.text
