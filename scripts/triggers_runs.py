"""Triggers on streams whose boundaries are hidden: the runs of docs/results/triggers.md.

    python -m scripts.triggers_runs out=FOLDER [streams=permuted_text,...] [methods=fire,...] [seeds=10] [smoke=true]

First each trigger's setting is chosen with FIRE on seeds of its own, by the stream's score. Then every method is run
under the known boundary, each trigger, three fixed schedules, and never. Runs are jobs, as many at once as cores; one
line of `runs.jsonl` a run; started again, it goes on where it stopped. Seed after seed, so that what is there at any
moment is balanced.
"""

import json
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.config.errors import TrainingError
from harness.run import provenance
from harness.run.jobs import Ended, Job, compose, program_of, run_jobs
from harness.tune.search import rows_of
from scripts.triggers_streams import FIRE_ALONE, METHODS, SEEDS, STREAMS, TUNING, When

ALIKE = ("tracker=none", "progress=false", "cache=off", "threads=1", "checkpoint.every_seconds=3600")
KEYS = ("stream", "method", "when", "seed")
Key = tuple[str, str, When, int]


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
        self.lengths: dict[str, tuple[int, int]] = {}

    def make(self, keys: Iterable[Key]) -> None:
        """Train the runs that are not there yet; their folders are not kept."""
        jobs = {self.job(*key): key for key in keys if file_key(key) not in self.found}
        shutil.rmtree(self.folder / "training", ignore_errors=True)  # of runs that were stopped
        for ended in run_jobs(jobs):
            key = jobs[ended.job]
            if ended.state == "diverged":
                raise TrainingError(f"{' '.join(ended.job.options)} diverged")
            row = dict(zip(KEYS, file_key(key), strict=True)) | self.row_of(key[0], ended)
            with open(self.file, "a") as file:
                file.write(json.dumps(row) + "\n")
            provenance.write(self.file, provenance.of_process(STREAMS[key[0]].program), key[0], more=True)
            self.found[file_key(key)] = row
            shutil.rmtree(ended.folder)
        shutil.rmtree(self.folder / "training", ignore_errors=True)

    def job(self, stream: str, method: str, when: When, seed: int) -> Job:
        """The job of a run."""
        return Job(STREAMS[stream].program, (*self.options(stream, method), *when.chosen, f"seed={seed}"))

    def row_of(self, stream: str, ended: Ended) -> dict[str, Any]:
        """What a run gave, with its processor time."""
        kind = STREAMS[stream]
        rows = rows_of(ended.folder)
        acted, last = [row for row in rows if "kind" in row], [row for row in rows if "kind" not in row][-1]
        steps, numbers = [row["step"] for row in acted], last | json.loads((ended.folder / "DONE").read_text())
        return {
            "online": numbers[kind.score],
            "task_end": numbers[kind.at_end],
            "seconds": ended.seconds,
            "method_seconds": sum(row["method/seconds"] for row in acted),
            "steps": steps,
            **alarms(steps, *self.length_and_tasks(stream)),
        }

    def length_and_tasks(self, stream: str) -> tuple[int, int]:
        """The steps of a task of a stream, and how many tasks it has."""
        if stream not in self.lengths:
            kind, config = STREAMS[stream], self.compose(stream, "base")  # which needs no trigger
            task = program_of(kind.program).make_task(config)
            self.lengths[stream] = kind.length(config, task), len(task.phases)
        return self.lengths[stream]

    def options(self, stream: str, method: str) -> list[str]:
        """The options of a stream and a method."""
        kind = STREAMS[stream]
        smoke = kind.smoke if self.smoke else ()
        return [*kind.options, *ALIKE, *smoke, f"method={method}", f"paths.runs={self.folder}/training"]

    def compose(self, stream: str, method: str) -> Any:
        """The configuration of a stream and a method."""
        return compose(STREAMS[stream].program, self.options(stream, method))


def file_key(key: Key) -> tuple[str, str, str, int]:
    """A run as its row in the file names it."""
    stream, method, when, seed = key
    return stream, method, str(when), seed


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
    kind, seeds = STREAMS[stream], TUNING[:1] if runs.smoke else TUNING
    settings = {
        name: [When(name, options) for options in (grid[:1] if runs.smoke else grid)]
        for name, grid in kind.grids.items()
    }
    runs.make((stream, "fire", when, seed) for several in settings.values() for when in several for seed in seeds)

    def score(when: When) -> float:
        return kind.sign * statistics.fmean(runs.found[stream, "fire", str(when), seed]["online"] for seed in seeds)

    for name, several in settings.items():
        yield name, max(several, key=score)


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
    runs.make(
        (stream, method, when, seed)
        for seed in (seeds[:1] if smoke else seeds)
        for stream, several in compared.items()
        for method, _, when in several
    )


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(
        Path(given["out"]),
        given.get("streams", ",".join(STREAMS)).split(","),
        given.get("methods", ",".join(METHODS)).split(","),
        SEEDS[: int(given.get("seeds", len(SEEDS)))],
        given.get("smoke") == "true",
    )
