"""Runs of the real trainer in processes that can be killed.

A forked child has everything imported already, so that a kill costs a second and not ten.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hydra
import torch

from fire_core.harness.options.cli import CONF, Outcome
from fire_core.harness.run.execute import run_to_end
from vision.train import PROGRAM

T = TypeVar("T")
Record = Callable[[str, object], None]  # pytest's record_property
TINY = (
    "scale=smoke",
    "tracker=none",
    "progress=false",
    "threads=1",
    "model=small_resnet",
    "model.width=4",
    "batch_size=128",
)
CLOCKS = ("seconds", "method/seconds")  # differ from run to run


def tiny(*overrides: str) -> list[str]:
    """These options, and those of `TINY` that they do not set."""
    named = {override.split("=")[0] for override in overrides}
    return [option for option in TINY if option.split("=")[0] not in named] + list(overrides)


def compose(*overrides: str) -> Any:
    """The resolved vision config for these overrides."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("vision", tiny(*overrides))


def run(*overrides: str) -> dict[str, Any]:
    """Train in this process; the summary."""
    config = compose(*overrides)
    return run_to_end(config, PROGRAM, PROGRAM.make_task(config), Outcome(""))


def in_child(work: Callable[[], object], kill_after: float | None = None) -> int | None:
    """Do `work` in a forked child and kill it (SIGKILL) after some seconds.

    Returns:
        The exit code, or None if it was killed.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as leave:
            code = int(leave.code or 0)
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}")
        finally:
            os._exit(code)
    deadline = time.monotonic() + (600 if kill_after is None else kill_after)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def wait_for(condition: Callable[[], T], seconds: float = 120) -> T:
    """The first value of `condition` that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise TimeoutError("it never came to be")


def wait_until_held(child: int) -> None:
    """Until a child that `holds` (tests.harness.faults) has stopped itself."""
    wait_for(lambda: Path(f"/proc/{child}/stat").read_text().rsplit(") ", 1)[1].startswith("T"))


def lines(runs: Path, pattern: str = "vision/*") -> int:
    """Rows written so far by the one run that matches."""
    found = list(runs.glob(f"{pattern}/metrics.jsonl"))
    return found[0].read_bytes().count(b"\n") if found else 0


def rows(folder: Path, clocks: bool = False) -> list[dict[str, Any]]:
    """The rows of a run, without the clocks."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if clocks or k not in CLOCKS} for line in lines]


def final_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    return torch.load(newest, weights_only=True)["state"]["trainer"]


def only_run(runs: Path) -> Path:
    """The one run folder below `runs`."""
    (folder,) = (runs / "vision").iterdir()
    return folder


def assert_same(one: Path, other: Path) -> None:
    """Same name, same rows with no hole and no duplicate, same final state bit for bit."""
    assert one.name == other.name
    assert rows(one) == rows(other)
    steps = [(row["step"], "kind" in row) for row in rows(one)]  # a boundary's row comes after that of its step
    assert steps == sorted(set(steps))
    assert same(final_state(one), final_state(other))


def same(one: Any, other: Any) -> bool:
    """Bitwise equality of nested states, clocks apart."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        keys = one.keys() - set(CLOCKS)
        return keys == other.keys() - set(CLOCKS) and all(same(one[key], other[key]) for key in keys)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
