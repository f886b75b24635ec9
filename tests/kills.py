"""kill -9 at any moment, start the same command again: `python -m tests.kills <program> <folder> <kills>`.

A process of its own, for it forks, and torch must not have started threads before. Prints, as JSON, how many kills
there were, how many of them while a checkpoint or a part of the replay was being written, and how many before the
shared first phase was done.
"""

import json
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import torch

from harness.run import checkpoint
from tests.programs import ATARI, SAC, VISION, Program, assert_same, in_child, only_run

# What is killed: the program and its options.
STORMS: dict[str, tuple[Program, tuple[str, ...]]] = {
    "vision": (VISION, ("method=fire", "epochs=12", "checkpoint.every_seconds=0.05")),
    "atari": (ATARI, ("method=pi", "checkpoint.every_seconds=0.05")),
    "sac": (
        SAC,
        ("method=pi", "num_envs=2", "checkpoint.every_seconds=0.02", "env_steps=800", "replay_size=200"),
    ),
}  # fmt: skip


def die_at(name: str, call: int) -> None:
    """From here on, die by SIGKILL at the `call`-th use of `os.<name>` by the checkpoint module, before it is done."""
    count = 0
    real = getattr(os, name)

    def deadly(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    setattr(checkpoint.os, name, deadly)


def train(program: Program, runs: Path, options: tuple[str, ...], dies: tuple[str, int] | None = None) -> None:
    """A child's work: train to the end, or die while a checkpoint is being written."""
    if dies is not None:
        die_at(*dies)
    program.run(runs, *options)


def main(name: str, folder: Path, wanted: int) -> dict[str, int]:
    """Train once undisturbed and once through kills; compare."""
    program, options = STORMS[name]
    program.compose()  # imports the program, once for all children
    calm, rough, dice = folder / "calm", folder / "rough", random.Random(name)
    assert in_child(partial(train, program, calm, options)) == 0
    kills = writing = first = 0
    # fsync and replace are the two points at which a checkpoint is half there: on no disk, or under no name.
    for call in ("fsync", "replace") * max(1, wanted // 6):
        code = in_child(partial(train, program, rough, options, (call, dice.randint(2, 12))))
        kills, writing = kills + (code is None), writing + (code is None)
    while kills < wanted:
        code = in_child(partial(train, program, rough, options), kill_after=dice.uniform(0.05, 1.1))
        assert code in (None, 0)
        if code == 0:  # it got through before the kill: the rest of the kills hit a new run
            assert_same(only_run(calm), only_run(rough))
            rough = folder / f"rough{kills}"
        kills += code is None
        first += code is None and not list((rough / ".cache").glob("*/DONE"))
    assert in_child(partial(train, program, rough, options)) == 0
    assert_same(only_run(calm), only_run(rough))
    return {"kills": kills, "writing": writing, "first": first}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
