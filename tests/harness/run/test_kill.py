"""kill -9 at any moment, start the same command again: the numbers are those of an undisturbed run, bit for bit.

The test forks, so it runs in a process of its own where torch has not started threads.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from fire_core.harness.run import checkpoint
from tests.programs import VISION, Record, assert_same, in_child, only_run

OPTIONS = ("method=fire", "epochs=12", "checkpoint.every_seconds=0.05")


@pytest.mark.parametrize("kills", [9, pytest.param(25, marks=pytest.mark.slow)])
def test_any_number_of_kills_changes_nothing(kills: int, tmp_path: Path, record_property: Record) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.harness.run.test_kill", str(tmp_path), str(kills)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["kills"] >= kills
    assert told["kills_while_writing"] >= 6
    record_property("kills survived bit for bit", told["kills"])
    record_property("of them while a checkpoint was being written", told["kills_while_writing"])
    record_property("of them in the shared first phase", told["kills_in_first_phase"])


@contextmanager
def killed_at(name: str, call: int, half: bool = False) -> Iterator[None]:
    """Die by SIGKILL at the `call`-th use of `os.<name>` by the checkpoint module (before it, as if it never was)."""
    count = 0
    real = getattr(os, name)

    def deadly(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    setattr(checkpoint.os, name, deadly)
    yield


def die_while_writing(runs: Path, name: str, call: int) -> Callable[[], object]:
    """A child's work: train, and die inside the writing of a checkpoint."""

    def work() -> None:
        with killed_at(name, call):
            VISION.run(runs, *OPTIONS)

    return work


def main(folder: Path, wanted: int) -> None:
    """Train once undisturbed and once through kills; compare."""
    calm, rough = folder / "calm", folder / "rough"
    assert in_child(lambda: VISION.run(calm, *OPTIONS)) == 0
    dice = random.Random(0)
    kills = writing = first = 0
    # fsync and replace are the two points at which a checkpoint is half there: on no disk, or under no name.
    for name in ("fsync", "replace") * 3:
        assert in_child(die_while_writing(rough, name, dice.randint(1, 12))) is None, "the child was to die"
        writing += 1
    while kills + writing < wanted:
        code = in_child(partial(VISION.run, rough, *OPTIONS), kill_after=dice.uniform(0.05, 1.0))
        assert code in (None, 0)
        if code == 0:  # it got through before the kill: begin again, the rest of the kills hit a new run
            assert_same(only_run(calm), only_run(rough))
            rough = folder / f"rough{kills}"
        kills += code is None
        first += code is None and not list((rough / ".cache").glob("*/DONE"))
    assert in_child(lambda: VISION.run(rough, *OPTIONS)) == 0
    assert_same(only_run(calm), only_run(rough))
    print(json.dumps({"kills": kills + writing, "kills_while_writing": writing, "kills_in_first_phase": first}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
