"""kill -9 at any moment, start the same command again: the numbers are those of an undisturbed run, bit for bit.

The test forks, so it runs in a process of its own where torch has not started threads.
"""

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.harness.run.test_kill import killed_at
from tests.programs import SAC, Record, assert_same, in_child, only_run

OPTIONS = ("method=pi", "num_envs=2", "checkpoint.every_seconds=0.02", "env_steps=800", "replay_size=200")


@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_any_number_of_kills_changes_nothing(kills: int, tmp_path: Path, record_property: Record) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.rl.sac.test_kill", str(tmp_path), str(kills)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["kills"] >= kills
    record_property("kills of SAC survived bit for bit", told["kills"])


def die_while_writing(runs: Path, name: str, call: int) -> None:
    """Train, and die inside the writing of a checkpoint or of a part of the replay."""
    with killed_at(name, call):
        SAC.run(runs, *OPTIONS)


def main(folder: Path, wanted: int) -> None:
    """Train once undisturbed and once through kills; compare."""
    calm, rough = folder / "calm", folder / "rough"
    assert in_child(partial(SAC.run, calm, *OPTIONS)) == 0
    dice = random.Random(0)
    kills = 0
    for name in ("fsync", "replace", "fsync"):
        assert in_child(partial(die_while_writing, rough, name, dice.randint(2, 15))) is None, "the child was to die"
        kills += 1
    while kills < wanted:
        code = in_child(partial(SAC.run, rough, *OPTIONS), kill_after=dice.uniform(0.1, 1.2))
        assert code in (None, 0)
        if code == 0:  # it got through before the kill: the rest of the kills hit a new run
            assert_same(only_run(calm), only_run(rough))
            rough = folder / f"rough{kills}"
        kills += code is None
    assert in_child(partial(SAC.run, rough, *OPTIONS)) == 0
    assert_same(only_run(calm), only_run(rough))
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
