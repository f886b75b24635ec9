"""What methods cost on a stream of tasks: processor time of whole runs of one seed, and the state that a run keeps.

    python -m scripts.bench_methods --out docs/results/plasticity/cost.csv
    python -m scripts.bench_methods --methods base,fire,fire+muon --rounds 1 benchmark.tasks=2 epochs=2

Each run is a process of its own, forked when everything is imported, with one thread; methods take turns. Its clock is
its processor time, which other programs on the machine disturb least; boundaries, rows and checkpoints are in it. The
state is the last checkpoint: weights, initial weights, the optimizer's state and what the method keeps.
"""

import argparse
import csv
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.config.cli import Outcome
from harness.run import provenance
from harness.run.execute import new_run, run_to_end
from vision.train import PROGRAM
from vision.tune import fitting, parse

COLUMNS = ["method", "milliseconds a step", "over base", "lowest", "highest", "rounds", "state (KB)"]


def run_once(config: Any) -> tuple[float, int, int]:
    """Processor seconds of a whole run, its steps, and the bytes of its last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        config.paths.runs = folder
        task = PROGRAM.make_task(config)
        start = time.process_time()
        run_to_end(config, PROGRAM, task, Outcome(""))
        seconds = time.process_time() - start
        checkpoints = new_run(config, PROGRAM, task, None).folder / "checkpoints"
        newest = max(checkpoints.iterdir(), key=lambda path: path.name)
        return seconds, task.total_steps, newest.stat().st_size


def main() -> None:
    """Time the runs, print a line a method, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="options of vision.train")
    parser.add_argument("--methods", help="separated by commas; all that can act on the network")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a table")
    args = parser.parse_intermixed_args()
    stream = ["experiment=plasticity_random_labels", "benchmark.tasks=2", *args.overrides]
    search = parse([*stream, "method=base"]).search
    methods = args.methods.split(",") if args.methods else fitting(search)
    configs = {method: search.compose(method) for method in methods}
    runs_of: dict[str, list[tuple[float, int, int]]] = {method: [] for method in methods}
    for _ in range(args.rounds):
        for method, config in configs.items():
            with multiprocessing.get_context("fork").Pool(1) as pool:
                runs_of[method].append(pool.apply(run_once, (config,)))
    rows = []
    for method, runs in runs_of.items():
        ratios = sorted(run[0] / base[0] for run, base in zip(runs, runs_of[methods[0]], strict=True))
        step = statistics.median(seconds / steps for seconds, steps, _ in runs)
        middle, ends = statistics.median(ratios), (ratios[0], ratios[-1])
        numbers = [1000 * step, middle, *ends]
        rows.append([method, *(f"{x:.3g}" for x in numbers), len(runs), round(runs[0][2] / 1000)])
        said = f"{middle:5.2f} x {methods[0]} ({ends[0]:.2f} to {ends[1]:.2f})"
        print(f"{method:<20} {1000 * step:7.3f} ms a step, {said}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
        provenance.write(args.out, provenance.of_process("vision"))


if __name__ == "__main__":
    main()
