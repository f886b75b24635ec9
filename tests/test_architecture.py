"""docs/architecture.md names every file that a weight meets at a boundary, and a batch in a step."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import vision.train
from tests.programs import ALIKE, Program

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = ("fire_core", "harness", "vision")


def files_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, set[str]]:
    """What a call returns, and the files of this project whose functions ran in it."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        found.add(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        result = function(*arguments, **options)
    finally:
        sys.setprofile(None)
    inside = (Path(name) for name in found if Path(name).is_relative_to(ROOT))
    return result, {str(path.relative_to(ROOT)) for path in inside if path.relative_to(ROOT).parts[0] in ROOMS}


def listed(heading: str) -> set[str]:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section
    return set(re.findall(r"`((?:\w+/)+\w+\.py)`", section[1]))


def test_the_page_names_every_file_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, set[str]] = {"weight": set(), "batch": set()}
    originals = {name: getattr(vision.train, name) for name in ("begin_phase", "train_step", "batches")}

    def begin_phase(task: Any, learner: Any, index: int, run: Any) -> None:
        _, files = files_of(originals["begin_phase"], task, learner, index, run)
        ways["weight"] |= files if index else set()

    def train_step(*arguments: Any) -> Any:
        result, files = files_of(originals["train_step"], *arguments)
        ways["batch"] |= files
        return result

    def batches(*arguments: Any, **options: Any) -> Any:
        iterator = originals["batches"](*arguments, **options)
        while True:
            batch, files = files_of(next, iterator, None)
            ways["batch"] |= files
            if batch is None:
                return
            yield batch

    for name, wrapped in (("begin_phase", begin_phase), ("train_step", train_step), ("batches", batches)):
        monkeypatch.setattr(vision.train, name, wrapped)
    Program("vision", "vision.train", ALIKE).run(tmp_path, "method=fire", "cache=off")
    assert listed("One weight") == ways["weight"]
    assert listed("One batch") == ways["batch"]
