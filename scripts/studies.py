"""The studies of docs/protocol.md: runs one of them, or goes on with it, and writes its table.

    python -m scripts.studies figure2_small_a                 search where the study has one, then the report seeds
    python -m scripts.studies dial_labels workers=1           as many runs at once as that; all cores if left out
    python -m scripts.studies figure2_small_a rows=fire,snp   these rows alone; the table has them and what was there
    python -m scripts.studies dial_labels table               the tables of what there is, without any run
    python -m scripts.studies figure2_small_a smoke           every row once, at scale=smoke, into runs/smoke

A study is data (`STUDIES`): settings x rows x seeds. A finished run is skipped and an unfinished one resumes. The runs
are in runs/studies/<study>; docs/results/studies/<study>.csv has a line a run, <study>.curves.csv a line an epoch, or a
task where epochs are many. `.provenance.json` beside it says commit, command and processor.
"""

import csv
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.config.groups import CONF
from harness.run import provenance
from harness.run.execute import new_run
from harness.run.jobs import Job, compose, program_of, run_jobs

RESULTS = CONF.parent / "docs" / "results" / "studies"
SEARCH_SEEDS = (10_000, 10_001)
QUIET = ("tracker=none", "progress=false", "threads=1", "checkpoint.keep=1")
Options = tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """Rows, each in every setting, on the same seeds.

    Attributes:
        program: which trains.
        options: of every run.
        rows: name of a row -> its options.
        seeds: name of a row -> its report seeds, and `*` for all others.
        settings: name -> options; what the rows are compared in.
        rates: learning rates that each row is searched over in each setting; none: every row runs at the program's.
        score: of a run's summary, higher is better: what chooses a rate.
    """

    program: str
    options: Options
    rows: Mapping[str, Options]
    seeds: Mapping[str, Sequence[int]]
    settings: Mapping[str, Options] = field(default_factory=lambda: {"": ()})
    rates: tuple[float, ...] = ()
    score: str = "task_end/accuracy"

    def report_seeds(self, row: str) -> Sequence[int]:
        """Of a row."""
        return self.seeds.get(row, self.seeds["*"])


def methods(*names: str) -> dict[str, Options]:
    """Rows that are called as their method."""
    return {name: (f"method={name}",) for name in names}


ROWS_2A = methods(
    *("base", "full_reset", "fire", "snp", "dash", "fire_exact", "random_isometry"),
    *("parseval", "l2init", "redo", "snr", "cbp"),
) | {
    "fresh": ("method=base", "benchmark=continual", "benchmark.chunks=1", "epochs=10"),
    "muon": ("method=muon",),
}
ROWS_2BC = methods("base", "full_reset", "fire", "snp", "dash", "fire_exact")
DIAL = methods("base", "optimizer_reset", "full_reset", "random_isometry", "fire", "snp", "dash") | {
    "fire_half": ("method=fire", "method.blend=0.5", "method.name=fire_half")
}
SHARES = {f"{share}": (f"benchmark.share={share}",) for share in (1, 0.25, 0.05, 0.5, 0.1)}
TEN = {"*": range(101, 111)}
JPEG = ("dataset=folder", "dataset.path=data/cifar10_jpeg", "model.width=16", "cache=on")
STUDIES = {
    "figure2_small_a": Study(
        "vision",
        ("experiment=fig2a_cifar10", *JPEG, "epochs=5"),
        ROWS_2A,
        {name: range(101, 106) for name in ("base", "full_reset", "snp", "dash", "fire")} | {"*": range(101, 104)},
    ),
    "figure2_small_b": Study(
        "vision", ("experiment=fig2b_cifar10", *JPEG, "epochs=3"), ROWS_2BC, {"*": range(101, 104)}
    ),
    "figure2_small_c": Study(
        "vision",
        ("experiment=fig2b_cifar10", "benchmark=class_incremental", "benchmark.chunks=5", *JPEG, "epochs=5"),
        ROWS_2BC,
        {"*": range(101, 104)},
    ),
    "dial_labels": Study("vision", ("experiment=plasticity_random_labels",), DIAL, TEN, SHARES, (1e-3, 3e-3, 1e-2)),
    "dial_pixels": Study("vision", ("experiment=plasticity_permuted",), DIAL, TEN, SHARES, (1e-3, 3e-3, 1e-2)),
}


# -------------------------------------------------------------------------------------------------------------- running


def main(arguments: Sequence[str]) -> None:
    """Run a study and write its tables."""
    name, *words = arguments or ("",)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [word for word in words if word.split("=")[0] not in ("table", "smoke", "workers", "rows")]
    if name not in STUDIES or unknown:
        sys.exit(f"error: {' '.join(unknown) or name or 'no study'} is unknown; studies: {', '.join(STUDIES)}")
    study, smoke = STUDIES[name], "smoke" in words
    workers = int(given["workers"]) if "workers" in given else None
    chosen = given["rows"].split(",") if "rows" in given else list(study.rows)
    if missing := [row for row in chosen if row not in study.rows]:
        sys.exit(f"error: rows={','.join(missing)}: {name} has {', '.join(study.rows)}")
    runs = Path("runs") / ("smoke" if smoke else "studies") / name
    options = study.options
    if smoke:  # the digits, a few steps
        options = (
            *(word for word in options if not word.startswith(("dataset", "epochs"))),
            "dataset=digits",
            "scale=smoke",
        )
    common = (*options, *QUIET, f"paths.runs={runs}")
    finder = Finder(
        replace(study, rows={row: study.rows[row] for row in chosen}), common, workers, smoke, "table" in words
    )
    whole = Finder(study, common, workers, only_read=True)
    for setting in study.settings:
        rates = finder.search(setting) if study.rates and not smoke else dict.fromkeys(chosen, None)
        finder.report(setting, rates)
        if not smoke:
            whole.report(setting, rates if study.rates else dict.fromkeys(study.rows))
            write(RESULTS / f"{name}.csv", whole, f"python -m scripts.studies {name}")


@dataclass
class Finder:
    """Runs jobs and keeps what they gave: (setting, row, rate, seed) -> run folder, of searches and reports."""

    study: Study
    common: Options
    workers: int | None
    smoke: bool = False
    only_read: bool = False  # trains nothing: takes the runs that are there
    searched: dict[tuple[str, str, float, int], Path] = field(default_factory=dict)
    reported: dict[tuple[str, str, float | None, int], Path] = field(default_factory=dict)

    def job(self, setting: str, row: str, rate: float | None, seed: int) -> Job:
        """The run of a row."""
        rates = () if rate is None else (f"lr={rate:g}",)
        study = self.study
        options = (*self.common, *study.settings[setting], *study.rows[row], *rates, f"seed={seed}")
        return Job(study.program, options)

    def run(self, wanted: Iterable[tuple[str, str, float | None, int]]) -> Iterator[tuple[Any, Path]]:
        """Train what is wanted; each with its run folder as it ends, in a folder that says nothing if it diverged."""
        jobs = {self.job(*key): key for key in wanted}
        if self.only_read:
            for job, key in jobs.items():
                config, program = compose(job.program, job.options), program_of(job.program)
                folder = new_run(config, program, program.make_task(config), None).folder
                if (folder / "DONE").exists():
                    yield key, folder
        else:
            for ended in run_jobs(jobs, self.workers):
                yield jobs[ended.job], ended.folder

    def search(self, setting: str) -> dict[str, float | None]:
        """The best rate of each row; rates go on past an edge at which a row is best."""
        rates = dict.fromkeys(self.study.rows, self.study.rates)
        while True:
            wanted = [
                (setting, row, rate, seed)
                for row, seed in itertools.product(self.study.rows, SEARCH_SEEDS)
                for rate in rates[row]
                if (setting, row, rate, seed) not in self.searched
            ]
            found = dict(self.run(wanted))
            self.searched |= found
            means = {row: {rate: self.score(setting, row, rate) for rate in rates[row]} for row in rates}
            chosen = {row: max(means[row], key=means[row].__getitem__) for row in rates}
            wider = {row: extended(rates[row], chosen[row]) for row in rates}
            if wider == rates or not found:
                return dict(chosen)
            rates = wider

    def score(self, setting: str, row: str, rate: float) -> float:
        """The mean over the search's seeds; minus infinity where one diverged or is missing."""
        folders = [self.searched.get((setting, row, rate, seed)) for seed in SEARCH_SEEDS]
        values = [summary(folder).get(self.study.score, -math.inf) if folder else -math.inf for folder in folders]
        return statistics.fmean(values)

    def report(self, setting: str, rates: Mapping[str, float | None]) -> None:
        """Run the report seeds, one seed of all rows after the other."""
        seeds = sorted({seed for row in self.study.rows for seed in self.study.report_seeds(row)})[
            : 1 if self.smoke else None
        ]
        wanted = [
            (setting, row, rates[row], seed)
            for seed, row in itertools.product(seeds, rates)
            if seed in self.study.report_seeds(row)
        ]
        for key, folder in self.run(wanted):
            self.reported[key] = folder
            if not self.only_read:
                print(*key, {k: round(v, 4) for k, v in summary(folder).items() if isinstance(v, float)}, flush=True)


def extended(rates: tuple[float, ...], best: float) -> tuple[float, ...]:
    """The rates and one beyond the edge at which the best lies, a third or three times of it, within 1e-5 to 1."""
    if best == min(rates) > 1e-5:
        return (float(f"{best / 3:.0e}"), *rates)
    if best == max(rates) < 0.3:
        return (*rates, float(f"{best * 3:.0e}"))
    return rates


# --------------------------------------------------------------------------------------------------------------- tables


def summary(folder: Path) -> dict[str, Any]:
    """Of a finished run; nothing of another."""
    done = folder / "DONE"
    values: dict[str, Any] = json.loads(done.read_text()) if done.exists() else {}
    return values


def write(table: Path, finder: Finder, command: str) -> None:
    """A line a run, and a line for each last epoch of a task and each boundary."""
    lines, curves = [], []
    for (setting, row, rate, seed), folder in sorted(finder.reported.items(), key=lambda item: str(item[0])):
        names = {"setting": setting, "row": row, "lr": rate, "seed": seed}
        if not (end := summary(folder)):
            lines.append(names | {"diverged": True})
            continue
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        epochs = [entry for entry in rows if "kind" not in entry]
        boundaries = [entry for entry in rows if entry.get("kind") == "boundary"]
        kept = [
            entry["boundary/previous_accuracy_after"]
            for entry in boundaries
            if "boundary/previous_accuracy_after" in entry
        ]
        ends = {entry["phase"]: entry for entry in epochs}
        lines.append(
            names
            | {key: value for key, value in end.items() if key != "rows_sha256"}
            | {
                "epochs": epochs[-1]["epoch"],
                "kept": statistics.fmean(kept) if kept else None,
                "last_two": statistics.fmean(entry["train/accuracy"] for entry in [*ends.values()][-2:]),
                "act_seconds": sum(entry["method/seconds"] for entry in boundaries),
            }
        )
        for entry in epochs if len(epochs) <= 50 else ends.values():
            curves.append(names | {key: value for key, value in entry.items() if key not in ("kind", "lr")})
        for entry in boundaries:
            chosen = (
                "step",
                "phase",
                "boundary/test_accuracy_after",
                "boundary/previous_accuracy_after",
                "boundary/dfi_after",
            )
            curves.append(names | {"boundary": True} | {key: entry[key] for key in chosen if key in entry})
    if not lines:
        return
    table.parent.mkdir(parents=True, exist_ok=True)
    for path, content in ((table, lines), (table.with_suffix(".curves.csv"), curves)):
        with path.open("w", newline="") as file:
            columns = list(dict.fromkeys(key for line in content for key in line))
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(
                {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in line.items()}
                for line in content
            )
    entry = provenance.of_folders(finder.reported.values())
    for path in (table, table.with_suffix(".curves.csv")):
        provenance.write(path, entry | {"command": command})


if __name__ == "__main__":
    main(sys.argv[1:])
