"""Try the paper's runs at their real sizes on tiny data, to find what composes but would fail after hours.

    python -m scripts.dry_run                      what is not done yet; the table is docs/dry_run.csv
    python -m scripts.dry_run vgg16 a_cifar10      these parts alone, again
    python -m scripts.dry_run --list               the names of all parts

An architecture: every method acts on it at a boundary, and makes one step after it, in one process. A panel: FIRE
through all its phases, killed in the first and in the last and resumed each time, and its figure. Data are noise in the
published formats (CIFAR's pickles, Tiny-ImageNet's folders, files of GPT-2 tokens); games are the real ones. The folder
runs/dry_run holds all; methods that have acted on an architecture are not asked again.
"""

import csv
import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image

from fire_core.muon import optimizer as muon_optimizer
from fire_core.tools.output import keep_output
from harness.config.errors import ConfigError
from harness.config.groups import CONF, choices
from harness.program.by_name import MODULES
from harness.program.jobs import Job, compose, run_job
from harness.training.loop import Loop
from language.data import SPLITS, write_header
from language.prepare import corpus_folder
from language.task import parts_of_dataset
from language.tokenizers import get_tokenizer
from vision.data.files import md5_of

TABLE = CONF.parent / "docs" / "dry_run.csv"
RUNS = Path(os.environ.get("RUNS", "runs/dry_run"))
DATA = RUNS / "data"
IMAGES = {10: 20, 100: 2, 200: 1}  # training images of each class, by the number of classes
TESTED = {10: 20, 100: 100, 200: 40}  # test images in all
# GPT-0.1B on a CPU, which emulates bfloat16: float32, one sequence a step, a few iterations.
GPT = (
    "experiment=fig3", "batch_size=1", "accumulation=1", "eval_sequences=1", "precision=float32", "compile=off",
)  # fmt: skip
GAME = (
    "total_steps=200", "midpoint=100", "learning_starts=60", "log_every=50", "eval.every=100", "eval.steps=50",
)  # fmt: skip
# HumanoidBench's networks and options on a humanoid that can be installed.
HUMANOID = (
    "scale=paper", "boundary=sac_paper", "variant=fire_paper", "env_steps=80", "eval_every=40", "eval_episodes=1",
    "random_steps=12",
)  # fmt: skip
IMAGE = ("epochs=1", "schedule=warmup", "batch_size=32")
ARCHITECTURES = {
    "resnet18": ("vision", ("experiment=fig2b_cifar10", *IMAGE)),
    "vit_tiny": ("vision", ("experiment=fig2b_cifar100", *IMAGE)),
    "vgg16": ("vision", ("experiment=fig2b_tinyimagenet", *IMAGE)),
    "nature_cnn": ("dqn", ("experiment=fig4a_asterix", *GAME)),
    "simba": ("sac", HUMANOID),
    "gpt_0.1b": (
        "language",
        (
            *GPT,
            "benchmark.iterations=[1,1]",
            "benchmark.checkpoints=[]",
            "benchmark.start=end",
            "benchmark.extra_step=false",
        ),
    ),
}
ROWS = {"a": 1, "b": 9, "c": 19}  # of figure 2: the last phase
PANELS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    **{
        f"{row}_{data}": ("vision", last, (f"experiment=fig2{row}_{data}", *IMAGE))
        for row, last in ROWS.items()
        for data in ("cifar10", "cifar100", "tinyimagenet")
        if (row, data) != ("c", "cifar10")
    },
    **{game: ("dqn", 1, (f"experiment=fig4a_{game}", *GAME)) for game in ("asterix", "beam_rider", "demon_attack")},
    "humanoid": ("sac", 1, HUMANOID),
    **{f"h1_{task}": ("sac", 1, (f"experiment=fig4b_h1_{task}", *HUMANOID)) for task in ("walk", "balance", "run")},
    "table10": ("vision", 1, ("experiment=fig2a_cifar10", *IMAGE, "method.iterations=5")),
    **{
        f"gpt_from_{start}": (
            "language",
            1,
            (*GPT, "benchmark.iterations=[2,2]", "benchmark.checkpoints=[1,2]", f"benchmark.start={kept}"),
        )
        for start, kept in {"best": "best", "30k": 1, "60k": 2}.items()
    },
}
H1 = () if importlib.util.find_spec("humanoid_bench") else ("h1_walk", "h1_balance", "h1_run")
NEEDS = dict.fromkeys(H1, "HumanoidBench is not installed; `humanoid` has its networks and options")
QUIET = ("tracker=none", "progress=false", "checkpoint.keep=1", f"paths.data={DATA}")


# ----------------------------------------------------------------------------------------------------------------- data


def make_data(program: str) -> None:
    """Write the missing data sets of a program; games need none."""
    if program == "vision":
        make_images()
    elif program == "language":
        make_texts()


def make_images() -> None:
    """Write missing images, and set torchvision's checksums, in this process, to those of the written files."""
    from torchvision import datasets

    draw = np.random.default_rng(0)

    def images(number: int, size: int) -> np.ndarray:
        return draw.integers(0, 256, (number, size, size, 3), dtype=np.uint8)

    for kind, classes, key in ((datasets.CIFAR10, 10, "labels"), (datasets.CIFAR100, 100, "fine_labels")):
        folder = DATA / kind.base_folder
        lists = (*kind.train_list, *kind.test_list)
        if not (folder / kind.meta["filename"]).exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name, _ in lists:
                trains = [name, _] in kind.train_list
                number = classes * IMAGES[classes] // len(kind.train_list) if trains else TESTED[classes]
                rows = images(number, 32).transpose(0, 3, 1, 2).reshape(number, -1)
                labels = [i % classes for i in range(number)]
                (folder / name).write_bytes(pickle.dumps({"data": rows, key: labels}))
            names = [str(i) for i in range(classes)]
            (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}))
        for entry in (*lists, kind.meta):
            place: Any = ("filename", "md5") if isinstance(entry, dict) else (0, 1)
            entry[place[1]] = md5_of(folder / entry[place[0]])
    folder = DATA / "tiny-imagenet-200"
    if not (folder / "wnids.txt").exists():
        wnids = [f"n{i:08}" for i in range(200)]
        named = {f"train/{wnid}/images/{wnid}_0.JPEG": wnid for wnid in wnids}
        held_out = {f"val_{i}.JPEG": wnid for i, wnid in enumerate(wnids[:: 200 // TESTED[200]])}
        for name in (*named, *(f"val/images/{name}" for name in held_out)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images(1, 64)[0]).save(folder / name)
        for name, wnid in named.items():
            (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{Path(name).name}\t0\t0\t63\t63\n")
        lines = [f"{name}\t{wnid}\t0\t0\t63\t63\n" for name, wnid in held_out.items()]
        (folder / "val/val_annotations.txt").write_text("".join(lines))
        (folder / "wnids.txt").write_text("\n".join(wnids))


def make_texts() -> None:
    """Write missing files of tokens."""
    draw, tokenizer = np.random.default_rng(0), get_tokenizer("gpt2")
    pair: Any = OmegaConf.to_container(compose("language", ("experiment=fig3",)).dataset, resolve=True)
    for corpus in parts_of_dataset(pair).values():
        folder = corpus_folder(DATA, corpus, tokenizer)
        for split in SPLITS:
            if not (folder / f"{split}.json").exists():
                folder.mkdir(parents=True, exist_ok=True)
                draw.integers(0, tokenizer.end, 20_000).astype(tokenizer.dtype).tofile(folder / f"{split}.bin")
                write_header(folder / f"{split}.bin", tokenizer, "noise", "")


# ------------------------------------------------------------------------------------- in the process that trains


def record_seconds_of_acts(program: str, runs: Path) -> list[float]:
    """Wrap a program's `act` for the rest of this process; return a list to which each act adds its seconds.

    The seconds include the measurements around the act, and are logged in `runs` too. Call it once.

    Args:
        program: a key of `MODULES`, such as "vision".
        runs: the folder that the log is written to.
    """
    module, seconds = importlib.import_module(MODULES[program]), list[float]()
    act = module.act

    def timed_act(*arguments: Any, **options: Any) -> None:
        began = time.perf_counter()
        act(*arguments, **options)
        seconds.append(time.perf_counter() - began)
        say(runs, boundary=seconds[-1])

    module.act = timed_act  # type: ignore[attr-defined]
    return seconds


def kill_in(phase: int) -> None:
    """Make this process kill itself at the phase's second step (or its only one), after a checkpoint of the first."""
    end_step, steps = Loop.end_step, 0

    def end_step_or_die(loop: Loop, save: Callable[[], None], ended: bool) -> None:
        nonlocal steps
        if loop.learner.phase == phase:
            steps += 1
            if ended or steps == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            save()
        end_step(loop, save, ended)

    Loop.end_step = end_step_or_die  # type: ignore[assignment, method-assign]


def run_panel(name: str, phase: int | None) -> None:
    """Train a panel's run to its end, or until it kills itself in `phase`, and log how it ended."""
    program, _, options = PANELS[name]
    make_data(program)
    record_seconds_of_acts(program, RUNS / name)
    if phase is not None:
        kill_in(phase)
    ended = run_job(Job(program, (*options, *QUIET, "method=fire", f"paths.runs={RUNS / name}")))
    say(RUNS / name, state=ended.state, error=repr(ended.error))


def run_methods(name: str, *methods: str) -> None:
    """Let methods act on an architecture, each from the shared first phase; by default all that have not acted yet."""
    program, options = ARCHITECTURES[name]
    make_data(program)
    runs = RUNS / name
    seconds, module = record_seconds_of_acts(program, runs), importlib.import_module(MODULES[program])
    make_task = module.PROGRAM.make_task

    def make_short(config: Any) -> Any:
        task = make_task(config)
        if program == "vision":  # two phases of one step
            task.phases = [
                dataclasses.replace(phase, train=phase.train[:20], test=phase.test[:20]) for phase in task.phases[:2]
            ]
        return task

    module.PROGRAM = dataclasses.replace(module.PROGRAM, make_task=make_short)  # type: ignore[attr-defined]
    for method in methods or sorted(set(choices("method", program)) - {line.get("method") for line in said(runs)}):
        boundaries_before = len(seconds)
        parts = ("method.of=fire+muon",) if method == "chain" else ()
        ended = run_job(Job(program, (*options, *QUIET, f"paths.runs={runs}", f"method={method}", *parts)))
        act = sum(seconds[boundaries_before:])
        say(runs, method=method, state=ended.state, error=repr(ended.error), act=act)
        for checkpoints in runs.glob(f"{program}/*/checkpoints"):
            shutil.rmtree(checkpoints)
        gc.collect()  # frees the memory of this run before the next


def say(runs: Path, **what: Any) -> None:
    """Add a line to the log of a part, said.jsonl, through which its processes report to the main one."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / "said.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def said(runs: Path) -> list[dict[str, Any]]:
    """Return the lines of a part's log; an empty list if there is none."""
    path = runs / "said.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---------------------------------------------------------------------------------------------------------- the table


def main(arguments: Sequence[str]) -> None:
    """Run the named parts, or all that are not done, and write the table."""
    match list(arguments):
        case ["--list"]:
            print(*ARCHITECTURES, *PANELS)
            return
        case ["--process", name, *words]:
            muon_optimizer.DTYPE = torch.float32  # emulated bfloat16 takes a quarter of an hour for a step of GPT-0.1B
            run_methods(name, *words) if name in ARCHITECTURES else run_panel(name, int(words[0]) if words else None)
            return
    runnable = [name for name in (*ARCHITECTURES, *PANELS) if name not in NEEDS]
    if unknown := [name for name in arguments if name not in runnable]:
        sys.exit(f"error: {unknown[0]} is unknown; accepted: {', '.join(runnable)}")
    names = [name for name in arguments or runnable if arguments or not (RUNS / f"{name}.json").exists()]
    for name in names:
        result = check_methods(name) if name in ARCHITECTURES else check_panel(name)
        (RUNS / f"{name}.json").write_text(json.dumps(result))
        print(name, result, flush=True)
    write_table()


def check_methods(name: str) -> dict[str, Any]:
    """Run all methods on an architecture, and return its entries of the table."""
    status, memory, seconds = process(name)
    lines = [line for line in said(RUNS / name) if "method" in line]
    acted = {line["method"]: line["act"] for line in lines if line["state"] == "done"}
    refused = [line["method"] for line in lines if line["error"].startswith(ConfigError.__name__)]
    failed = [line["method"] for line in lines if line["method"] not in (*acted, *refused)]
    slowest = max(acted, key=acted.__getitem__, default="none")
    note = f"{len(acted)} methods; slowest {slowest}, {acted.get(slowest, 0):.1f} s"
    for word, methods in {"refused": refused, "failed": failed}.items():
        note += f"; {word}: {', '.join(methods)}" if methods else ""
    ok = status == 0 and not failed
    return {"ok": ok, "memory": memory, "boundary": acted.get("fire", 0.0), "seconds": seconds, "note": note}


def check_panel(name: str) -> dict[str, Any]:
    """Run a panel with two kills, draw its figure, and return its entries of the table."""
    program, last, _ = PANELS[name]
    runs = RUNS / name
    shutil.rmtree(runs, ignore_errors=True)
    killed_in_first = process(name, "0")
    killed_in_last = process(name, str(last))
    undisturbed = process(name)
    ended = (killed_in_first, killed_in_last, undisturbed)
    codes = tuple(code for code, _, _ in ended)
    lines = said(runs)
    command = [sys.executable, "analysis/make_figures.py", "--runs", str(runs), "--out", str(runs / "figures")]
    drawn = subprocess.run(command, capture_output=True, check=False).returncode == 0 and any(
        runs.glob("figures/*.png")
    )
    ok = codes == (-signal.SIGKILL, -signal.SIGKILL, 0) and lines[-1].get("state") == "done" and drawn
    note = "" if ok else f"processes ended with {codes}, figure {drawn}, {lines[-1:]}"
    for place in (runs / program, runs / ".cache"):
        shutil.rmtree(place, ignore_errors=True)
    boundary = max(line.get("boundary", 0.0) for line in lines)
    return {
        "ok": ok,
        "memory": max(memory for _, memory, _ in ended),
        "boundary": boundary,
        "seconds": sum(seconds for _, _, seconds in ended),
        "note": note,
    }


def process(*words: str) -> tuple[int, float, float]:
    """Run `scripts.dry_run --process` with words, and return (exit status, peak memory in GB, processor seconds)."""
    RUNS.mkdir(parents=True, exist_ok=True)
    with (RUNS / f"{words[0]}.log").open("a") as log:
        command = [sys.executable, "-m", "scripts.dry_run", "--process", *words]
        started = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)  # or Popen warns that it still runs
    return started.returncode, usage.ru_maxrss / 1e6, usage.ru_utime + usage.ru_stime


def write_table() -> None:
    """Write the table, with a line for each part, also for those that were not run."""
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        measured = ("peak_memory_gb", "fire_act_seconds", "fire_boundary_seconds", "processor_seconds")
        table.writerow(("part", "ok", *measured, "note"))
        for name in (*ARCHITECTURES, *PANELS):
            path = RUNS / f"{name}.json"
            result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"note": NEEDS.get(name, "")}
            ok = {True: "yes", False: "no", None: "not run"}[result.get("ok")]
            result |= act_of(name)
            keys = ("memory", "act", "boundary", "seconds")
            numbers = [f"{result[key]:.2f}" if key in result else "" for key in keys]
            table.writerow((name, ok, *numbers, result["note"]))


def act_of(name: str) -> dict[str, float]:
    """Return the seconds of FIRE's act alone as `act`, without the boundary's measurements; empty if it has not run."""
    for metrics in RUNS.glob(f"{name}/*/*-fire-*/metrics.jsonl"):
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {"act": sum(row["method/seconds"] for row in rows if row.get("kind") == "boundary")}
    return {}


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
