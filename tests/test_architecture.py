"""docs/architecture.md names every file that a weight, a batch, a transition and an option meet on their way."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rl.dqn.train
import vision.train
from harness.program.start import run_program
from tests.programs import ALIKE, Program
from tests.zygote import Zygote

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = ("fire_core", "harness", "rl", "vision")


def record(files: set[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which adds to `files` those of this project whose functions run while it does."""

    def look(frame: FrameType, event: str, argument: object) -> None:
        files.add(frame.f_code.co_filename)

    def recorded(*arguments: Any, **options: Any) -> Any:
        sys.setprofile(look)
        try:
            return function(*arguments, **options)
        finally:
            sys.setprofile(None)

    return recorded


def of_this_project(files: set[str]) -> set[str]:
    paths = [Path(name).relative_to(ROOT) for name in files if Path(name).is_relative_to(ROOT)]
    return {str(path) for path in paths if path.parts[0] in ROOMS}


def named_below(heading: str) -> set[str]:
    """The files that a section of the page names."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section
    return set(re.findall(r"`((?:\w+/)+\w+\.py)`", section[1]))


def test_a_weight_and_an_image_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight: set[str] = set()
    batch: set[str] = set()
    begin_phase, draw = vision.train.begin_phase, vision.train.batches

    def begin(task: Any, learner: Any, index: int, run: Any) -> None:
        (record(weight, begin_phase) if index > 0 else begin_phase)(task, learner, index, run)

    def batches(*arguments: Any, **options: Any) -> Iterator[Any]:
        following = record(batch, draw(*arguments, **options).__next__)
        while True:
            try:
                yield following()
            except StopIteration:
                return

    monkeypatch.setattr(vision.train, "begin_phase", begin)
    monkeypatch.setattr(vision.train, "batches", batches)
    monkeypatch.setattr(vision.train, "train_step", record(batch, vision.train.train_step))
    few = ("benchmark.tasks=2", "benchmark.samples=64", "epochs=1")
    Program("vision", "vision.train", ALIKE).run(tmp_path, "method=fire", "cache=off", *few)
    assert named_below("One weight") == of_this_project(weight)
    assert named_below("One image batch") == of_this_project(batch)


def test_a_transition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transition: set[str] = set()
    monkeypatch.setattr(rl.dqn.train, "interact", record(transition, rl.dqn.train.interact))
    Program("dqn", "rl.dqn", ALIKE).run(tmp_path, "experiment=continual_cartpole", "method=fire", "cache=off")
    assert named_below("One transition") == of_this_project(transition)


def test_an_option(tmp_path: Path, zygote: Zygote) -> None:
    """In a process of its own, as the program takes over its output and its signals."""
    answer = zygote.run(tmp_path, "tests.test_architecture", "method=fire", "method.iterations=5", *ALIKE)
    assert answer.code == 0, answer.err
    assert named_below("One option") == set(json.loads(answer.out))


def trace_until_training() -> None:
    """Start `vision.train` with the options of the command line, and print which files ran before its `train`."""
    option: set[str] = set()

    def train(*arguments: Any, **options: Any) -> None:
        sys.setprofile(None)
        print(json.dumps(sorted(of_this_project(option))))
        sys.exit()

    vision.train.PROGRAM = dataclasses.replace(vision.train.PROGRAM, train=train)
    record(option, run_program)(vision.train.main, "vision")


if __name__ == "__main__":
    trace_until_training()
