"""Times loading and drawing of many runs: 1,000 runs of 2,000 rows should take under 60 s and 2 GB on two cores.

python scripts/benchmark_analysis.py
python scripts/benchmark_analysis.py --runs 100
"""

import argparse
import json
import resource
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


def write(root: Path, number: int, rows: int) -> None:
    """One run folder with the columns of a vision run."""
    setting, seed, method = number // len(METHODS) % len(DATA), number // (len(METHODS) * len(DATA)), number % 10
    rng = np.random.default_rng(number)
    half = rows // 2
    accuracy = 0.8 - 0.7 * np.exp(-np.arange(rows) % half / 200) + rng.normal(0, 0.01, rows)
    config = {
        "method": {"name": METHODS[method]},
        "benchmark": {"name": "warm_start"},
        "dataset": {"name": DATA[setting]},
        "model": {"name": "small_resnet", "width": 16},
        "optimizer": {"name": "adam", "lr": 1e-3},
        "seed": seed,
    }
    folder = root / "vision" / f"run-{number:05d}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "env.json").write_text("{}")
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(rows):
            row = {"step": 100 * (i + 1), "phase": i // half, "epoch": 0.1 * (i + 1), "train/loss": float(rng.random())}
            row |= {"train/accuracy": float(rng.random()), "test/accuracy": float(accuracy[i]), "lr": 1e-3}
            file.write(json.dumps(row | {"seconds": 0.5 * i}) + "\n")
    (folder / "DONE").write_text("{}")


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds of a command and the most memory of any so far, in GB."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(args.runs):
            write(root / "runs", number, args.rows)
        options = [f"runs={root / 'runs'}", f"out={root / 'figures'}"]
        for program in ("make_figures", "make_report"):
            for call in ("first", "second") if program == "make_figures" else ("cached",):
                out = options if program == "make_figures" else [options[0], f"out={root / 'report.html'}"]
                seconds, memory = timed([sys.executable, f"analysis/{program}.py", *out])
                print(f"{program}, {call} call: {seconds:.1f} s, at most {memory:.2f} GB")


if __name__ == "__main__":
    main()
