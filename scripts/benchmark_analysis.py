"""Times the programs that read many runs: make_figures at first and again, make_report, `harness.runs ls`.

python scripts/benchmark_analysis.py                        1,000 finished runs of 200 rows each, then 10,000
python scripts/benchmark_analysis.py --runs 1000 --rows 2000

The targets, in seconds on an idle machine: of 1,000 runs make_figures at most 20 and make_report 5; of 10,000
make_figures 180, make_report 30 and `harness.runs ls` 10, each within 1 GB. Processor seconds stand beside the wall
seconds, for machines that are busy with other work. A run of 200 rows is the paper's warm start: two phases of 100
epochs. make_report comes after make_figures and finds the runs read. Numbers: docs/reliability.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("base", "full_reset", "snp", "dash", "parseval", "l2init", "cbp", "redo", "snr", "fire")
DATA = ("digits", "cifar10", "cifar100", "tinyimagenet")
COLUMNS = ("runs", "program", "wall s", "processor s", "peak GB")


def write(root: Path, number: int, rows: int) -> None:
    """One finished run's folder, with the files and the columns of a vision run."""
    setting, seed, method = number // len(METHODS) % len(DATA), number // (len(METHODS) * len(DATA)), number % 10
    rng = np.random.default_rng(number)
    half = rows // 2
    accuracy = 0.8 - 0.7 * np.exp(-np.arange(rows) % half / 200) + rng.normal(0, 0.01, rows)
    config = {
        "program": "vision",
        "method": {"name": METHODS[method]},
        "benchmark": {"name": "warm_start"},
        "dataset": {"name": DATA[setting]},
        "model": {"name": "small_resnet", "width": 16},
        "optimizer": {"name": "adam", "lr": 1e-3},
        "seed": seed,
    }
    folder = root / "vision" / f"warm_start-{DATA[setting]}-{METHODS[method]}-s{seed}-{number:08x}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "identity.json").write_text(json.dumps({"run": config, "execution": {"threads": 1, "device": "cpu"}}))
    (folder / "env.json").write_text(json.dumps({"total_steps": 100 * rows}))
    (folder / ".lock").touch()
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(rows):
            row = {"step": 100 * (i + 1), "phase": i // half, "epoch": 0.1 * (i + 1), "train/loss": float(rng.random())}
            row |= {"train/accuracy": float(rng.random()), "test/accuracy": float(accuracy[i]), "lr": 1e-3}
            file.write(json.dumps(row | {"seconds": 0.5 * i}) + "\n")
    (folder / "DONE").write_text(json.dumps({"test/accuracy": float(accuracy[-1])}))


def timed(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak memory in GB of a command.

    Raises:
        subprocess.CalledProcessError: it fails.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6


def measure(runs: int, rows: int) -> None:
    """Write the runs into a temporary folder, time each program on them and print a line for each."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(runs):
            write(root / "runs", number, rows)
        figures = ["analysis/make_figures.py", f"runs={root / 'runs'}", f"out={root / 'figures'}"]
        report = ["analysis/make_report.py", f"runs={root / 'runs'}", f"out={root / 'report.html'}"]
        listing = ["-m", "harness.runs", "--runs", str(root / "runs"), "ls"]
        programs = {"make_figures": figures, "make_figures again": figures, "make_report": report, "runs ls": listing}
        for program, command in programs.items():
            wall, processor, memory = timed([sys.executable, *command])
            print(f"| {runs} | {program} | {wall:.1f} | {processor:.1f} | {memory:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--rows", type=int, default=200, help="of each run (default: 200)")
    args = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|" + "---|" * len(COLUMNS))
    for runs in args.runs:
        measure(runs, args.rows)


if __name__ == "__main__":
    main()
