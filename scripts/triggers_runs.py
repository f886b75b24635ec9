"""Triggers on streams whose boundaries are hidden: the runs of docs/results/triggers.md.

    python -m scripts.triggers_runs out=FOLDER [streams=permuted_text,...] [methods=fire,...] [seeds=10] [smoke=true]

First each trigger's setting is chosen with FIRE on seeds of its own, by the stream's score. Then every method is run
under the known boundary, each trigger, three fixed schedules, and never. One line of `runs.jsonl` a run; started again,
it goes on where it stopped. Seed after seed, so that what is there at any moment is balanced.
"""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf

from fire_core.harness.options.cli import CONF, Outcome
from fire_core.harness.run import provenance
from fire_core.harness.run.execute import run_to_end
from scripts.triggers_streams import FIRE_ALONE, METHODS, SEEDS, STREAMS, TUNING, When

ALIKE = ("tracker=none", "progress=false", "cache=off", "threads=1", "checkpoint.every_seconds=3600")


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
            provenance.write(self.file, provenance.of_process(STREAMS[stream].program), stream, more=True)
            self.found[key] = row
        found: dict[str, Any] = self.found[key]
        return found

    def train(self, stream: str, method: str, when: When, seed: int) -> dict[str, Any]:
        """Train one run, with its processor time; the folder is not kept."""
        kind, config = STREAMS[stream], self.compose(stream, method)
        config.seed = seed
        config.trigger = OmegaConf.create(when.config)
        shutil.rmtree(config.paths.runs, ignore_errors=True)  # of a run that was stopped
        begin = time.process_time()
        task = kind.trains.make_task(config)
        summary = run_to_end(config, kind.trains, task, Outcome(""))
        seconds = time.process_time() - begin
        (file,) = Path(config.paths.runs).glob("*/*/metrics.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        shutil.rmtree(config.paths.runs)
        acted, last = [row for row in rows if "kind" in row], [row for row in rows if "kind" not in row][-1]
        steps, numbers = [row["step"] for row in acted], last | summary
        return {
            "online": numbers[kind.score],
            "task_end": numbers[kind.at_end],
            "seconds": seconds,
            "method_seconds": sum(row["method/seconds"] for row in acted),
            "steps": steps,
            **alarms(steps, kind.length(config, task), len(task.phases)),
        }

    def compose(self, stream: str, method: str) -> Any:
        """The configuration of a stream and a method."""
        if (stream, method) not in self.bases:
            kind = STREAMS[stream]
            options = (*kind.options, *ALIKE, *(kind.smoke if self.smoke else ()))
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                found = hydra.compose(
                    kind.program, [*options, f"method={method}", f"paths.runs={self.folder}/training"]
                )
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
    """Each trigger at the setting with the best score of FIRE on the tuning seeds."""
    kind = STREAMS[stream]
    for name, grid in kind.grids.items():
        settings = [When(name, options) for options in (grid[:1] if runs.smoke else grid)]
        seeds = TUNING[:1] if runs.smoke else TUNING
        scores = {
            str(when): kind.sign * statistics.fmean(runs.of(stream, "fire", when, seed)["online"] for seed in seeds)
            for when in settings
        }
        yield name, max(settings, key=lambda when: scores[str(when)])


def arms(runs: Runs, stream: str) -> list[tuple[str, str, When]]:
    """What is compared on a stream: (method, arm, when), FIRE first."""
    kind = STREAMS[stream]
    known = {"steps": int(runs.compose(stream, METHODS[0]).benchmark.steps)} if kind.known == "every" else {}
    whens = [("boundary", When(kind.known, known)), *chosen(runs, stream)]
    periods = (25,) if runs.smoke else kind.periods
    whens += [(f"every {steps}", When("every", {"steps": steps})) for steps in periods]
    whens += [("never", When("none", {}))]
    return [(m, arm, when) for m in METHODS for arm, when in whens if m == METHODS[0] or arm not in FIRE_ALONE]


def main(out: Path, streams: Sequence[str], methods: Sequence[str], seeds: Sequence[int], smoke: bool) -> None:
    """Make all runs, and write which is which into arms.json."""
    runs, file = Runs(out, smoke), out / "arms.json"
    methods = methods[:1] if smoke else methods
    compared = {stream: [arm for arm in arms(runs, stream) if arm[0] in methods] for stream in streams}
    names = json.loads(file.read_text()) if file.exists() else {}
    names |= {stream: [(method, arm, str(when)) for method, arm, when in compared[stream]] for stream in streams}
    file.write_text(json.dumps(names, indent=1) + "\n")
    for seed in seeds[:1] if smoke else seeds:
        for stream, several in compared.items():
            for method, _, when in several:
                runs.of(stream, method, when, seed)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(
        Path(given["out"]),
        given.get("streams", ",".join(STREAMS)).split(","),
        given.get("methods", ",".join(METHODS)).split(","),
        SEEDS[: int(given.get("seeds", len(SEEDS)))],
        given.get("smoke") == "true",
    )
