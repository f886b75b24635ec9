"""What tracking and checkpointing cost: the default run with both, against the same run with neither, taken in turns.

    python scripts/bench_overhead.py --rounds 5

Each run is a fork of one process that has imported everything, so that the two kinds differ in nothing else. Told are,
for the wall clock and for the processor time of the training process and its children (wandb lives in one), the medians
and the median over rounds of on/off. On a machine that does other work too, processor time is the one to trust.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import hydra

from fire_core.harness import run as run_module
from fire_core.harness.cli import CONF, Outcome
from vision.train import run_one

KINDS = ("off", "on")
COLUMNS = ("wall clock", "training process", "its children")


class Silent(run_module.Run):
    """A run that writes neither rows nor checkpoints."""

    def log(self, row: dict[str, object]) -> None:
        """Nothing."""

    def checkpoint(self, step: int, trainer: dict[str, object]) -> bool:
        """Nothing."""
        return True

    @property
    def checkpoint_due(self) -> bool:
        """Never."""
        return False


def measure(kind: str, options: list[str]) -> tuple[float, ...]:
    """Seconds of one run in a fork: wall clock, processor time of the process, and of its children."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with tempfile.TemporaryDirectory() as folder, hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            off = ["tracker=none"] if kind == "off" else []
            config = hydra.compose("vision", [f"paths.runs={folder}", "cache=off", "progress=false", *options, *off])
            if kind == "off":
                import vision.train

                vision.train.Run = Silent  # type: ignore[misc]
            began, before = time.perf_counter(), time.process_time()
            run_one(config, Outcome(""))
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            told = (time.perf_counter() - began, time.process_time() - before, children.ru_utime + children.ru_stime)
            os.write(write, " ".join(map(str, told)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return tuple(map(float, answer.split()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs")
    parser.add_argument("options", nargs="*", help="options of vision.train, such as scale=smoke")
    given = parser.parse_args()
    measure("off", ["scale=smoke"])  # warms the caches of the system
    seconds: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in KINDS}
    for number in range(given.rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            seconds[kind].append(measure(kind, given.options))
    print(f"python {Path(__file__).name} --rounds {given.rounds} {' '.join(given.options)}".strip())
    for index, name in enumerate(COLUMNS):
        on, off = ([row[index] for row in seconds[kind]] for kind in ("on", "off"))
        told = f"{name:<17} on {statistics.median(on):7.2f} s   off {statistics.median(off):7.2f} s"
        if min(off) > 0.5:
            more = sorted(a / b - 1 for a, b in zip(on, off, strict=True))
            told += f"   more: {statistics.median(more):+.2%} ({more[0]:+.2%} to {more[-1]:+.2%})"
        print(told)


if __name__ == "__main__":
    main()
