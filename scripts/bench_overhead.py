"""The cost of tracking and checkpoints: the default run with both and with neither, alternating.

    python scripts/bench_overhead.py --rounds 5

Each run is a fork of one process that has imported everything, so that the two kinds differ in nothing else. Printed
are medians: of the wall clock, of the processor time of the training process and of its children (wandb runs in one),
with on/off over rounds; and of the wall clock that the training process spends within the harness's own calls, which is
more precise than a difference of noisy totals. `waiting` is the wait at the end until wandb has the last rows.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hydra

import harness.run.execute
from harness.config.cli import CONF, Outcome
from harness.run.folder import Run
from harness.run.tracker import Wandb
from vision.train import PROGRAM

KINDS = ("off", "on")
COLUMNS = ("wall clock", "training process", "its children")
CALLS = ("log", "checkpoint")  # of Run, during training


class Silent(Run):
    """A run that writes neither rows nor checkpoints."""

    def log(self, row: dict[str, object]) -> None:
        """Nothing."""

    def checkpoint(self, step: int, trainer: dict[str, object]) -> None:
        """Nothing."""

    @property
    def checkpoint_due(self) -> bool:
        """Never."""
        return False

    def finish(self, summary: dict[str, Any]) -> None:
        """Without weights nothing is done."""


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The function, its seconds added to `spent[0]`."""

    def wrapper(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent[0] += time.perf_counter() - began

    return wrapper


def one_run(kind: str, options: list[str], folder: str) -> list[float]:
    """Seconds of a run in this process: wall clock, processor, children's processors, harness calls, waiting."""
    config = hydra.compose("vision", [f"paths.runs={folder}", "cache=off", "progress=false", *options])
    calls, waiting = [0.0], [0.0]
    if kind == "off":
        config.tracker = {"_target_": "harness.run.tracker.Tracker", "name": "none"}
        patch("harness.run.execute.Run", Silent).start()  # this process ends with the run
    else:
        for name in CALLS:
            setattr(Run, name, timed(getattr(Run, name), calls))
        Wandb.finish = timed(Wandb.finish, waiting)  # type: ignore[method-assign]
    began, before = time.perf_counter(), time.process_time()
    harness.run.execute.run_to_end(config, PROGRAM, PROGRAM.make_task(config), Outcome(""))
    wall, processor = time.perf_counter() - began, time.process_time() - before
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [wall, processor, children.ru_utime + children.ru_stime, calls[0], waiting[0]]


def measure(kind: str, options: list[str]) -> list[float]:
    """The same, in a fork."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with tempfile.TemporaryDirectory() as folder, hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            os.write(write, json.dumps(one_run(kind, options, folder)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer: list[float] = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs")
    parser.add_argument("options", nargs="*", help="options of vision.train, such as scale=smoke")
    given = parser.parse_args()
    measure("off", ["scale=smoke"])  # fills the system's caches
    seconds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for number in range(given.rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            seconds[kind].append(measure(kind, given.options))
    print(f"python {Path(__file__).name} --rounds {given.rounds} {' '.join(given.options)}".strip())
    for index, name in enumerate(COLUMNS):
        on, off = ([row[index] for row in seconds[kind]] for kind in ("on", "off"))
        line = f"{name:<17} on {statistics.median(on):7.2f} s   off {statistics.median(off):7.2f} s"
        if min(off) > 0.5:
            more = sorted(a / b - 1 for a, b in zip(on, off, strict=True))
            line += f"   more: {statistics.median(more):+.2%} ({more[0]:+.2%} to {more[-1]:+.2%})"
        print(line)
    walls, calls, waiting = ([row[index] for row in seconds["on"]] for index in (0, 3, 4))
    part = statistics.median(call / (wall - wait) for call, wall, wait in zip(calls, walls, waiting, strict=True))
    print(f"harness calls     {statistics.median(calls):.3f} s, {part:.2%} of the wall clock")
    print(f"waiting           {statistics.median(waiting):.3f} s at the end, for wandb")


if __name__ == "__main__":
    main()
