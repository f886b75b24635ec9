"""Triggers on streams whose boundaries are hidden: the runs of docs/results/triggers.md.

    python -m scripts.triggers_runs out=FOLDER [smoke=true]

First each trigger's setting is chosen with FIRE on seeds of its own, by the average online accuracy. Then every method
is run under the known boundary, each trigger, three fixed schedules, and never. One line of `runs.jsonl` a run; started
again, it goes on where it stopped. Seed after seed, so that what is there at any moment is balanced.
"""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from omegaconf import OmegaConf

from fire_core.harness.options.cli import CONF, Outcome
from fire_core.harness.options.trigger import CHOICES
from fire_core.harness.run.execute import run_to_end
from vision.task import Task
from vision.train import PROGRAM

# Shorter than the default streams: 8 tasks of 400 steps and 10 of 200.
STREAMS = {
    "random_labels": (
        "benchmark=random_labels", "benchmark.samples=600", "benchmark.tasks=8", "epochs=40", "batch_size=64",
    ),
    "permuted": (
        "benchmark=permuted", "benchmark.samples=640", "benchmark.tasks=10", "epochs=10", "batch_size=32",
    ),
}  # fmt: skip
# on_nan=skip: without a trigger, steps of a perceptron would be taken in another, faster loop, and costs not compare.
ALIKE = (
    "tracker=none", "progress=false", "metrics=off", "cache=off", "threads=1", "checkpoint.every_seconds=3600",
    "on_nan=skip",
)  # fmt: skip
SMOKE = ("benchmark.tasks=4", "epochs=2")
METHODS = ("fire", "snp", "full_reset")
EVERY = 20  # steps between two measurements
GRIDS: dict[str, list[dict[str, Any]]] = {
    "plateau": [
        {"every": EVERY, "patience": patience, "min_delta": delta} for patience in (1, 2, 4) for delta in (0.0, 0.05)
    ],
    "dormancy": [{"every": EVERY, "above": above} for above in (0.1, 0.2, 0.3, 0.4)],
    "rank": [{"every": EVERY, "below": below} for below in (0.2, 0.3, 0.4, 0.5)],
    "drift": [{"every": EVERY, "above": above} for above in (10, 30, 100, 300)],
}
# Fixed schedules: no divisors and no multiples of a task's 400 or 200 steps, which would be known boundaries.
PERIODS = {"random_labels": (150, 350, 900), "permuted": (75, 175, 450)}
TUNING, SEEDS = range(100, 103), range(20)


class When(NamedTuple):
    """A choice of `trigger=` and its options."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value:g}" for key, value in self.options.items())])


class Runs:
    """The runs made so far, in a file.

    Args:
        folder: of the file and, while it trains, of a run.
        smoke: streams of seconds.
    """

    def __init__(self, folder: Path, smoke: bool) -> None:
        self.folder, self.file, self.smoke = folder, folder / "runs.jsonl", smoke
        folder.mkdir(parents=True, exist_ok=True)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.found = {tuple(row[key] for key in KEYS): row for row in map(json.loads, lines)}
        self.bases: dict[tuple[str, str], Any] = {}

    def of(self, stream: str, method: str, when: When, seed: int) -> dict[str, Any]:
        """What one run gave; it is trained if it is not there yet."""
        key = (stream, method, str(when), seed)
        if key not in self.found:
            row = dict(zip(KEYS, key, strict=True)) | self.train(stream, method, when, seed)
            with open(self.file, "a") as file:
                file.write(json.dumps(row) + "\n")
            self.found[key] = row
        found: dict[str, Any] = self.found[key]
        return found

    def train(self, stream: str, method: str, when: When, seed: int) -> dict[str, Any]:
        """Train one run, with its processor time; the folder is not kept."""
        config = self.compose(stream, method)
        config.seed = seed
        config.trigger = OmegaConf.create({**CHOICES[when.name], **when.options})
        task, runs = Task.from_config(config), Path(config.paths.runs)
        begin = time.process_time()
        summary = run_to_end(config, PROGRAM, task, Outcome(""))
        seconds = time.process_time() - begin
        (file,) = runs.glob("vision/*/metrics.jsonl")
        acted = [row for row in map(json.loads, file.read_text().splitlines()) if "kind" in row]
        shutil.rmtree(runs)
        length = task.phases[0].steps(config.batch_size)
        return {
            "online": summary["online/accuracy"],
            "task_end": summary["task_end/accuracy"],
            "seconds": seconds,
            "method_seconds": sum(row["method/seconds"] for row in acted),
            "steps": [row["step"] for row in acted],
            **alarms([row["step"] for row in acted], length, len(task.phases)),
        }

    def compose(self, stream: str, method: str) -> Any:
        """The configuration of a stream and a method."""
        if (stream, method) not in self.bases:
            options = (*STREAMS[stream], *ALIKE, *(SMOKE if self.smoke else ()))
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                found = hydra.compose("vision", [*options, f"method={method}", f"paths.runs={self.folder}/training"])
            self.bases[stream, method] = found
        return self.bases[stream, method].copy()


KEYS = ("stream", "method", "when", "seed")


def alarms(steps: list[int], length: int, tasks: int) -> dict[str, Any]:
    """How firings compare with the changes of the stream, which come after each `length` steps.

    The first firing after a change and before the next one has found it; its delay is counted from the change. Every
    other firing is a false alarm, also each one in the first task, which nothing came before.
    """
    found: dict[int, int] = {}
    for step in steps:
        if (change := step // length) > 0:
            found.setdefault(change, step - change * length)
    return {
        "firings": len(steps),
        "false": len(steps) - len(found),
        "missed": tasks - 1 - len(found),
        "delay": statistics.fmean(found.values()) if found else None,
    }


def chosen(runs: Runs, stream: str) -> Iterator[tuple[str, When]]:
    """Each trigger at the setting with the best average online accuracy of FIRE on the tuning seeds."""
    for name, grid in GRIDS.items():
        settings = [When(name, options) for options in (grid[:1] if runs.smoke else grid)]
        seeds = TUNING[:1] if runs.smoke else TUNING
        scores = {
            str(when): statistics.fmean(runs.of(stream, "fire", when, seed)["online"] for seed in seeds)
            for when in settings
        }
        yield name, max(settings, key=lambda when: scores[str(when)])


def arms(runs: Runs, stream: str) -> list[tuple[str, str, When]]:
    """What is compared on a stream: (method, arm, when)."""
    whens = [("boundary", When("boundary", {})), *chosen(runs, stream)]
    periods = (25,) if runs.smoke else PERIODS[stream]
    whens += [(f"every {steps}", When("every", {"steps": steps})) for steps in periods]
    methods = METHODS[:1] if runs.smoke else METHODS
    found = [(method, arm, when) for method in methods for arm, when in whens]
    return [*found, ("fire", "never", When("none", {}))]  # never is the same for all methods


def main(out: Path, smoke: bool = False) -> None:
    """Make all runs, and write which is which into arms.json."""
    runs = Runs(out, smoke)
    compared = {stream: arms(runs, stream) for stream in STREAMS}
    names = {stream: [(method, arm, str(when)) for method, arm, when in compared[stream]] for stream in STREAMS}
    (out / "arms.json").write_text(json.dumps(names, indent=1) + "\n")
    for seed in SEEDS[:2] if smoke else SEEDS:
        for stream, several in compared.items():
            for method, _, when in several:
                runs.of(stream, method, when, seed)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(Path(given["out"]), given.get("smoke") == "true")
