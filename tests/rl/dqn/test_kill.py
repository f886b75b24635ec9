"""kill -9 at any moment, start the same command again: the same agent, bit for bit.

The test forks, so it runs in a process of its own where torch has not started threads.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.harness.run.test_kill import killed_at
from tests.programs import ATARI, DQN, Program, Record, assert_same, in_child, only_run

OPTIONS = ("method=pi", "checkpoint.every_seconds=0.05")


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_any_number_of_kills_changes_nothing(kills: int, tmp_path: Path, record_property: Record) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.rl.dqn.test_kill", str(tmp_path), str(kills)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["kills"] >= kills
    record_property("kills of DQN survived bit for bit", told["kills"])
    record_property("of them while a checkpoint or a segment of the replay was being written", told["writing"])


def die_while_writing(runs: Path, name: str, call: int, program: Program) -> Callable[[], object]:
    """A child's work: train, and die inside the writing of a checkpoint or of a segment of the replay."""

    def work() -> None:
        with killed_at(name, call):
            program.run(runs, *OPTIONS)

    return work


def through_kills(folder: Path, program: Program, kills: int, seed: int) -> tuple[int, int]:
    """Train once undisturbed and once through kills, and compare; how many there were, and while writing."""
    calm, rough, dice = folder / "calm", folder / "rough", random.Random(seed)
    assert in_child(lambda: program.run(calm, *OPTIONS)) == 0
    done = writing = 0
    for name in ("fsync", "replace") * max(1, kills // 4):
        if in_child(die_while_writing(rough, name, dice.randint(3, 25), program)) is None:
            done, writing = done + 1, writing + 1
    while done < kills:
        code = in_child(partial(program.run, rough, *OPTIONS), kill_after=dice.uniform(0.1, 1.2))
        assert code in (None, 0)
        if code == 0:  # it got through before the kill: begin again
            assert_same(only_run(calm), only_run(rough))
            rough = folder / f"rough{done}"
        done += code is None
    assert in_child(lambda: program.run(rough, *OPTIONS)) == 0
    assert_same(only_run(calm), only_run(rough))
    return done, writing


def main(folder: Path, wanted: int) -> None:
    """The small task, and a game."""
    half = wanted // 2
    told = [through_kills(folder / "cartpole", DQN, half, 0), through_kills(folder / "atari", ATARI, wanted - half, 1)]
    kills, writing = (sum(numbers) for numbers in zip(*told, strict=True))
    print(json.dumps({"kills": kills, "writing": writing}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    main(Path(sys.argv[1]), int(sys.argv[2]))
