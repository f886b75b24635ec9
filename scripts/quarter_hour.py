"""Use a quarter of an hour of one GPU: run the GPU tests, measure costs, and train figure 2a.

    scripts/quarter_hour.sh                  parts a and b, then c if the measured speed ends it in time
    scripts/quarter_hour.sh --only c         one part; a later call goes on from its checkpoints
    scripts/quarter_hour.sh --rehearse       everything on a CPU, on a few digits, in under three minutes

Parts, in their order, each with a time limit of its own; each writes its rows as it goes:

    a   the tests that need a GPU, at most 60 s                                    a_tests.txt
    b   what a GPU costs, at most 90 s (scripts/bench_gpu.py; --long adds more)    b_costs.csv
    c   figure 2a: CIFAR-10 (JPEG copies), ResNet-18 of width 64, 100 + 100 epochs, batch 256, bfloat16, one seed
        (docs/studies/figure2a)                                                    c_epochs.csv, c_rows.csv

The arithmetic of c: each of the two phases trains on 5 million images (phase 0: 5,000 images, ten passes an epoch), and
the second follows the first, so that the time is 10 million images at the speed of one process. At 15,500 images a
second, which one eager bfloat16 process reached on an H100, that is 645 s. A full reset forgets phase 0 and runs beside
it. Then base, FIRE and half run together. How many of the four rows run is chosen before the first begins, in the order
base, full reset, FIRE, half, from the speeds that b measured; a row that has begun is ended, in this call or the next.

A machine without a network needs what `--pack FOLDER` puts into a folder: wheels of the packages beside torch, NumPy,
SciPy and scikit-learn (Linux on x86-64, the Python version of --python), and the archive of images. There:
`pip install --no-index --no-deps FOLDER/*.whl`.

The images are looked for in data/cifar10_jpeg (train/<class>/*.jpg, test/<class>/*.jpg), or in an archive beside it,
data/cifar10_jpeg.tar.xz.
"""

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from harness.config.groups import CONF
from harness.run.environment import environment

ROOT = CONF.parent
STUDY = ROOT / "docs" / "studies" / "figure2a"
SEEDS = (301, 302, 303)
IMAGES = 5_000_000  # training images in each phase, counted over all epochs
ROWS = {
    "base": ("method=base",),
    "full_reset": ("method=full_reset", "skip_first_phase=true"),
    "fire": ("method=fire",),
    "half": ("method=fire", "method.blend=0.5", "method.name=half"),
}
BESIDE_FIRST_PHASE = "full_reset"  # the row that needs no first phase, and so runs beside it
# What the harness needs and a machine with torch may lack.
PACKAGES = (
    *("hydra-core", "omegaconf", "antlr4-python3-runtime", "hydra-joblib-launcher", "joblib", "filelock"),
    *("gymnasium", "farama-notifications", "cloudpickle", "ale-py", "tqdm"),
    *("safetensors", "pytest", "pluggy", "iniconfig", "packaging", "pytest-xdist", "execnet", "imageio"),
)
START_AND_END = 40.0  # seconds for imports, loading images and evaluation
LIMIT = {"a": 60.0, "b": 90.0, "c": 720.0}  # seconds of each part


@dataclass(frozen=True)
class Setting:
    """The options and folders of a call.

    Attributes:
        options: options of every run of part c.
        out: folder of the rows.
        runs: folder of the run folders, from which a later call resumes.
        rehearsal: whether this is a rehearsal on a CPU.
    """

    options: tuple[str, ...]
    out: Path
    runs: Path
    rehearsal: bool


def main() -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("a", "b", "c"), help="one part")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, small")
    parser.add_argument("--long", action="store_true", help="b also compiles, and measures larger matrices")
    parser.add_argument("--seconds", type=float, default=LIMIT["c"], help="that c may take (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "quarter_hour")), help="folder for rows")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="make a folder for a machine without a network")
    parser.add_argument("--python", default="3.12", help="of that machine (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of c; default: the first of 301, 302, 303 that has no rows yet")
    args = parser.parse_args()
    if args.pack is not None:
        pack(args.pack, args.python)
        return
    if not args.rehearse and not torch.cuda.is_available():
        sys.exit("error: torch sees no CUDA GPU here; --rehearse runs everything small on a CPU")
    args.out.mkdir(parents=True, exist_ok=True)
    setting = rehearsed(args.out) if args.rehearse else at_paper_size(args.out)
    (args.out / "environment.json").write_text(json.dumps(environment(), indent=1) + "\n")
    parts = args.only or "abc"
    patience = 10 if args.rehearse else 1  # a rehearsal may share its CPU with others
    if "a" in parts:
        run_tests(setting, patience * LIMIT["a"])
    if "b" in parts:
        measure_costs(setting, patience * LIMIT["b"], args.long)
    if "c" in parts:
        seed = args.seed or next_seed(STUDY / "rows.csv")
        train_rows(setting, seed, args.seconds, always=args.only == "c")


def at_paper_size(out: Path) -> Setting:
    """Return the setting of figure 2a as in the paper, on the JPEG copies; unpack them if need be."""
    images = ROOT / "data" / "cifar10_jpeg"
    archive = images.with_suffix(".tar.xz")
    if not images.is_dir() and archive.exists():
        images.mkdir(parents=True)
        with tarfile.open(archive) as packed:
            packed.extractall(images, filter="data")
    options = (
        *("experiment=fig2a_cifar10", "dataset=folder", f"dataset.path={images}"),
        *("precision=bfloat16", "cuda_graph=true", "device=cuda", "threads=1", "metrics=weights"),
    )
    return Setting(options, out, ROOT / "runs" / "figure2a", rehearsal=False)


def rehearsed(out: Path) -> Setting:
    """Return the setting of a rehearsal: the same parts on a few digits."""
    options = (
        *("experiment=fig2a_cifar10", "dataset=digits", "dataset.train_size=200", "model=small_resnet"),
        *("model.width=8", "epochs=3", "device=cpu", "threads=1", "metrics=weights"),
    )
    return Setting(options, out, out / "runs", rehearsal=True)


def pack(folder: Path, python: str) -> None:
    """Put wheels and images into a folder, and print its size."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    versions = {name: f"{name}=={metadata.version(name)}" for name in PACKAGES}  # those of this environment
    pure = versions.pop("antlr4-python3-runtime")  # it has no wheel, and is pure Python
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), pure], check=True)
    platforms = [f"--platform=manylinux{kind}_x86_64" for kind in ("_2_28", "_2_27", "_2_17", "2014", "_2_31", "_2_24")]
    target = ["--only-binary=:all:", f"--python-version={python}", *platforms]
    subprocess.run([*pip, "download", "--no-deps", *target, "--dest", str(folder), *versions.values()], check=True)
    archive = ROOT / "data" / "cifar10_jpeg.tar.xz"
    if archive.exists():
        shutil.copy(archive, folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    say(
        f"{folder}: {len(list(folder.iterdir()))} files, {size:.1f} MiB{'' if archive.exists() else ', without images'}"
    )


# ------------------------------------------------------------------------------------------------------------ a and b


def run_tests(setting: Setting, seconds: float) -> None:
    """Run the tests that need a GPU; in a rehearsal they are skipped."""
    say(f"a: tests that need a GPU, at most {seconds:.0f} s")
    folders = ["tests/polar"] if setting.rehearsal else []
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "gpu", "-q", *folders]
    with (setting.out / "a_tests.txt").open("w") as output:
        ended = run_for(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT), seconds)
    last_line = (setting.out / "a_tests.txt").read_text().strip().rsplit("\n", 1)[-1]
    say(f"a: {last_line if ended else 'stopped at its limit'}")


def measure_costs(setting: Setting, seconds: float, long: bool) -> None:
    """Run `scripts/bench_gpu.py`, which writes a row after each measurement."""
    say(f"b: what a GPU costs, at most {seconds:.0f} s")
    command = [sys.executable, "-m", "scripts.bench_gpu", "--out", str(setting.out / "b_costs.csv")]
    if setting.rehearsal:
        command.append("--rehearse")
    if long:
        command.append("--long")
    ended = run_for(subprocess.Popen(command, cwd=ROOT), seconds if not long else 4 * seconds)
    say(f"b: {'done' if ended else 'stopped at its limit'}: {setting.out / 'b_costs.csv'}")


# ------------------------------------------------------------------------------------------------------------------ c


def next_seed(table: Path) -> int:
    """Return the first seed of the study that has no rows yet.

    Raises:
        SystemExit: all seeds have rows.
    """
    lines = csv.DictReader(table.read_text().splitlines() if table.exists() else [])
    seeds_with_rows = {int(line["seed"]) for line in lines}
    for seed in SEEDS:
        if seed not in seeds_with_rows:
            return seed
    sys.exit(f"error: seeds {', '.join(map(str, SEEDS))} of docs/studies/figure2a have rows: the study has ended")


def speeds(table: Path) -> dict[int, float]:
    """Return number of processes -> their total images per second, as part b measured; empty if it has not run."""
    if not table.exists():
        return {}
    lines = csv.DictReader(table.read_text().splitlines())
    measured = {line["what"]: float(line["per_second"]) for line in lines if line["per_second"]}
    names = {1: "resnet18 graph", 2: "resnet18 graph, processes 2", 3: "resnet18 graph, processes 3"}
    return {number: measured[name] for number, name in names.items() if name in measured}


def chosen_rows(together: dict[int, float], seconds: float) -> list[str]:
    """Return the rows that can be trained in time: as many as possible of ROWS, in its order.

    Args:
        together: number of processes -> their total images per second.
        seconds: time limit of part c.
    """
    possible: list[str] = []
    for count in range(1, len(ROWS) + 1):
        rows = list(ROWS)[:count]
        beside = BESIDE_FIRST_PHASE in rows
        later = [row for row in rows if row != BESIDE_FIRST_PHASE]
        first = IMAGES * (1 + beside) / speed_of(together, 1 + beside)
        second = IMAGES * len(later) / speed_of(together, len(later))
        if first + second + START_AND_END <= seconds:
            possible = rows
    return possible


def speed_of(together: dict[int, float], processes: int) -> float:
    """Return the total speed of a number of processes, or of the next smaller number that was measured."""
    return together[max((number for number in together if number <= processes), default=min(together))]


def train_rows(setting: Setting, seed: int, seconds: float, always: bool) -> None:
    """Train phase 0 with the full reset beside it, then the other rows together, and write their numbers.

    Args:
        setting: the options and folders.
        seed: seed of all rows.
        seconds: time after which the processes are asked to write checkpoints and leave.
        always: whether to train even if the speed is not known, or too low for any row to end in this call.
    """
    together = speeds(setting.out / "b_costs.csv")
    plan = setting.runs / f"plan-{seed}.json"  # a later call goes on with the rows that an earlier one has chosen
    if plan.exists():
        rows = json.loads(plan.read_text())
    elif setting.rehearsal or (always and not together):
        rows = list(ROWS)
    else:
        rows = chosen_rows(together, seconds) if together else []
        rows = rows or (list(ROWS)[:1] if always else [])
    known = ", ".join(f"{number}: {speed:,.0f}" for number, speed in together.items()) or "not measured"
    say(f"c: seed {seed}, images a second of all processes by their number: {known}")
    if not rows:
        say(f"c: not begun: no row would end in {seconds:.0f} s; a call with --only c begins and a later one goes on")
        return
    setting.runs.mkdir(parents=True, exist_ok=True)
    plan.write_text(json.dumps(rows))
    say(f"c: rows {', '.join(rows)}, at most {seconds:.0f} s")
    end = time.monotonic() + seconds
    first = [command(setting, seed, "base", "only_first_phase=true")]
    if BESIDE_FIRST_PHASE in rows:
        first.append(command(setting, seed, BESIDE_FIRST_PHASE))
    later = [command(setting, seed, row) for row in rows if row != BESIDE_FIRST_PHASE]
    all_ended = run_together(first, end) and run_together(later, end)
    collect(setting, seed)
    how = "done" if all_ended else "stopped: the same command goes on from the checkpoints"
    say(f"c: {how}: {setting.out / 'c_rows.csv'}")


def command(setting: Setting, seed: int, row: str, *more: str) -> list[str]:
    """Return the command of a run."""
    options = (*setting.options, *ROWS[row], f"seed={seed}", "tracker=none", "progress=false", *more)
    places = (f"paths.runs={setting.runs}", "checkpoint.every_seconds=30", "checkpoint.keep=1")
    return [sys.executable, "-m", "vision.train", *options, *places]


def run_together(commands: Sequence[list[str]], end: float) -> bool:
    """Run processes in parallel, and return whether all ended in time and without an error."""
    processes = [subprocess.Popen(words, cwd=ROOT) for words in commands]
    ended = [run_for(process, max(0.0, end - time.monotonic())) for process in processes]
    return all(ended) and not any(process.returncode for process in processes)


def run_for(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for a process, and return whether it ended in time.

    Otherwise it is asked to leave, which a trainer does with a checkpoint, and after 20 s it is killed.
    """
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return False


def collect(setting: Setting, seed: int) -> None:
    """Write the epochs of all runs of a seed, and a row for each finished run."""
    epochs, final_rows = list[dict[str, object]](), list[dict[str, object]]()
    about = environment()
    card = about["gpus"][0] if about["gpus"] else about["processor"]
    for folder in sorted((setting.runs / "vision").glob(f"*-s{seed}-*")):
        identity = json.loads((folder / "identity.json").read_text())["run"]
        row, precision = identity["method"]["name"], identity.get("precision", "float32")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        names = ("epoch", "phase", "train/loss", "train/accuracy", "test/accuracy", "test/loss", "seconds")
        epochs += [
            {"row": row, "seed": seed} | {key: line[key] for key in names} for line in lines if "kind" not in line
        ]
        if (folder / "DONE").exists():
            summary = json.loads((folder / "DONE").read_text())
            values = {key: summary[key] for key in ("test/accuracy", "train/accuracy", "seconds")}
            final_rows.append(
                {"row": row, "seed": seed} | values | {"card": card, "commit": about["git"], "precision": precision}
            )
    for name, table in (("c_epochs.csv", epochs), ("c_rows.csv", final_rows)):
        if table:
            with (setting.out / name).open("w", newline="") as file:
                writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(table)


def say(text: str) -> None:
    """Print a line with the time, without buffering."""
    print(time.strftime("[%H:%M:%S]"), text, flush=True)


if __name__ == "__main__":
    main()
