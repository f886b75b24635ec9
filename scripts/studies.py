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
from functools import partial
from pathlib import Path
from typing import Any

from harness.config.groups import CONF
from harness.run import provenance
from harness.run.execute import new_run
from harness.run.jobs import Job, compose, program_of, run_jobs
from harness.tune.space import Dimension, space_of, trials

RESULTS = CONF.parent / "docs" / "results" / "studies"
QUIET = ("tracker=none", "progress=false", "threads=1", "checkpoint.keep=1")
SCORES = ("train/accuracy", "task/return", "val/loss")  # of which a program's rows have one; `last_two` is its mean
Options = tuple[str, ...]
Run = tuple[str, str, Options, int]  # setting, row, trial, seed


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
        score: of a run's summary, higher is better: what chooses among trials.
        scrambled: trials of a search, as many for each row, between the ends of `rates` and over what `spaces` has of a
            row. Each setting then is a search of its own, with points and seeds of its own.
        spaces: name of a row -> what is searched beside its rate.
    """

    program: str
    options: Options
    rows: Mapping[str, Options]
    seeds: Mapping[str, Sequence[int]]
    settings: Mapping[str, Options] = field(default_factory=lambda: {"": ()})
    rates: tuple[float, ...] = ()
    score: str = "task_end/accuracy"
    scrambled: int = 0
    spaces: Mapping[str, Sequence[Dimension]] = field(default_factory=dict)

    def trials(self, setting: str, row: str) -> list[Options]:
        """The first trials of a row's search."""
        if not self.scrambled:
            return [(f"lr={rate:g}",) for rate in self.rates]
        space = [Dimension("lr", (min(self.rates), max(self.rates)), "log"), *self.spaces.get(row, ())]
        _, *points = trials(space, self.scrambled + 1, scramble=list(self.settings).index(setting))
        return [tuple(f"{name}={value}" for name, value in point.items()) for point in points]

    def search_seeds(self, setting: str) -> Sequence[int]:
        """Of a setting's search."""
        first = 10_000 + 2 * list(self.settings).index(setting) if self.scrambled else 10_000
        return first, first + 1

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
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def restarts(optimizer: str, temperature: str) -> Options:
    """What is new at a boundary of SAC, in the place of the policy of conf/boundary."""
    return f"boundary.optimizer={optimizer}", f"boundary.temperature={temperature}"


PENDULUM = ("experiment=continual_double_pendulum", "networks.actor_depth=2", "networks.critic_depth=2", "updates=4")
ROWS_SAC = methods("base", "full_reset", "random_isometry", "snp", "redo", "fire") | {
    "untouched": ("method=base", *restarts("keep", "keep")),
    "new_optimizer": ("method=base", *restarts("new", "keep")),
    "new_temperature": ("method=base", *restarts("keep", "new")),
    "fire_head_kept": ("method=fire", "method.layout={encoder:project,head:keep}", "method.name=fire_head_kept"),
}
CELLS_SAC = {
    "fire_alone": ("method=fire", *restarts("keep", "keep")),
    "fire_new_optimizer": ("method=fire", *restarts("new", "keep")),
    "fire_new_temperature": ("method=fire", *restarts("keep", "new")),
    "full_reset_alone": ("method=full_reset", *restarts("keep", "keep")),
}
CONTROLS = methods("base", "optimizer_reset", "full_reset", "random_isometry")
ACCUMULATION = CONTROLS | methods("fire", "fire_exact") | {
    "fire_half": ("method=fire", "method.blend=0.5", "method.name=fire_half"),
    "fire_first": ("method=fire", "method.layout={backbone.fc0:project}", "method.name=fire_first"),
    "fire_second": ("method=fire", "method.layout={backbone.fc1:project}", "method.name=fire_second"),
    "fire_head": ("method=fire", "method.layout={head:project}", "method.name=fire_head"),
    "fire_biases": ("method=fire", "method.layout={linear:project,*.bias:reinit}", "method.name=fire_biases"),
    "u_redrawn": ("method=random_isometry", "method.redraws=left", "method.name=u_redrawn"),
    "v_redrawn": ("method=random_isometry", "method.redraws=right", "method.name=v_redrawn"),
}  # fmt: skip
DECAY = ("optimizer=adamw", "optimizer.betas=[0.9,0.999]", "optimizer.weight_decay=0.1")
RANKED = CONTROLS | methods("fire", "snp", "parseval") | {"layer_norm_decay": ("model.norm=layer", *DECAY)}
FASHION = RANKED | methods("l2init") | {"decay": DECAY}
RESETS = ("base", "full_reset", "random_isometry", "snp", "fire")
OPTIMIZERS = {"adam": (), "decay": DECAY, "layer_norm": ("model.norm=layer",)}
COMBINED = {
    f"{reset}_{name}": (f"method={reset}", *options)
    for reset, (name, options) in itertools.product(RESETS, OPTIMIZERS.items())
} | {"base_muon": ("method=muon", "method.lr=${lr}")} | {
    f"{reset}_muon": ("method=chain", f"method.of={reset}+muon", "method.parts.muon.lr=${lr}")
    for reset in RESETS[1:]
}  # fmt: skip
# FIRE's rate alone; a rival's own options as conf/search.yaml has them.
SPACES = {
    row: tuple(replace(part, option=f"method.{part.option}") for part in space_of(row)) for row in ("snp", "parseval")
}
SPACES["layer_norm_decay"] = (Dimension("optimizer.weight_decay", (1e-3, 1.0), "log"),)
SCRAMBLES: dict[str, Options] = {f"search {number}": () for number in range(1, 6)}
SIZES = {
    "0.1M": (),
    "0.8M": ("model.n_layer=4", "model.n_head=4", "model.n_embd=128"),
}
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
    "sac_rows": Study("sac", PENDULUM, ROWS_SAC, TEN),
    "dial_labels": Study("vision", ("experiment=plasticity_random_labels",), DIAL, TEN, SHARES, (1e-3, 3e-3, 1e-2)),
    "dial_pixels": Study("vision", ("experiment=plasticity_permuted",), DIAL, TEN, SHARES, (1e-3, 3e-3, 1e-2)),
    "accumulation": Study(
        "vision",
        ("experiment=plasticity_random_labels", "benchmark.tasks=100", "metrics=full"),
        ACCUMULATION,
        TEN,
    ),
    "ranking_labels": Study(
        "vision",
        ("experiment=plasticity_random_labels", "benchmark.tasks=50"),
        RANKED,
        TEN,
        SCRAMBLES,
        (1e-4, 1e-2),
        scrambled=9,
        spaces=SPACES,
    ),
    "ranking_online": Study(
        "vision",
        ("experiment=plasticity_permuted_online",),
        RANKED,
        TEN,
        SCRAMBLES,
        (1e-4, 1e-2),
        "online/accuracy",
        scrambled=9,
        spaces=SPACES,
    ),
    "sac_cells": Study("sac", PENDULUM, CELLS_SAC, TEN),
    "fashion_labels": Study(
        "vision",
        ("experiment=plasticity_random_labels", "dataset=fashion_mnist", "epochs=100", "batch_size=16"),
        FASHION,
        {"*": range(101, 106)},
        rates=RATES,
    ),
    "resets_optimizers": Study(
        "vision", ("experiment=plasticity_random_labels",), COMBINED, TEN, rates=(1e-3, 3e-3, 1e-2, 3e-2)
    ),
    "language_probe": Study(
        "language",
        ("experiment=permuted_text", "probe_steps=200"),
        methods("base", "fire", "full_reset", "snp") | {"decay": ("optimizer.weight_decay=0.1",)},
        TEN,
        SIZES,
    ),
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
    if smoke:  # a few steps, of images the digits
        options = (
            *(word for word in options if not word.startswith(("dataset", "epochs", "benchmark.tasks"))),
            *(("dataset=digits",) if study.program == "vision" else ()),
            "scale=smoke",
        )
    common = (*options, *QUIET, f"paths.runs={runs}")
    finder = Finder(
        replace(study, rows={row: study.rows[row] for row in chosen}), common, workers, smoke, "table" in words
    )
    whole = Finder(study, common, workers, only_read=True)
    for setting in study.settings:
        found = finder.search(setting) if study.rates and not smoke else dict.fromkeys(chosen, ())
        finder.report(setting, found)
        if not smoke:
            whole.report(setting, found if study.rates else dict.fromkeys(study.rows, ()))
            write(RESULTS / f"{name}.csv", whole, f"python -m scripts.studies {name}")


@dataclass
class Finder:
    """Runs jobs and keeps what they gave: (setting, row, trial, seed) -> run folder, of searches and reports.

    A trial is what was searched: options of a run.
    """

    study: Study
    common: Options
    workers: int | None
    smoke: bool = False
    only_read: bool = False  # trains nothing: takes the runs that are there
    searched: dict[Run, Path] = field(default_factory=dict)
    reported: dict[Run, Path] = field(default_factory=dict)

    def job(self, setting: str, row: str, trial: Options, seed: int) -> Job:
        """The run of a row."""
        study = self.study
        return Job(study.program, (*self.common, *study.settings[setting], *study.rows[row], *trial, f"seed={seed}"))

    def run(self, wanted: Iterable[Run]) -> Iterator[tuple[Any, Path]]:
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

    def search(self, setting: str) -> dict[str, Options]:
        """The best trial of each row; rates go on past an edge at which a row is best."""
        tried = {row: self.study.trials(setting, row) for row in self.study.rows}
        while True:
            wanted = [
                (setting, row, trial, seed)
                for row, seed in itertools.product(self.study.rows, self.study.search_seeds(setting))
                for trial in tried[row]
                if (setting, row, trial, seed) not in self.searched
            ]
            found = dict(self.run(wanted))
            self.searched |= found
            chosen = {row: max(tried[row], key=partial(self.score, setting, row)) for row in tried}
            wider = {row: extended(tried[row], chosen[row]) for row in tried}
            if wider == tried or not found:
                return chosen
            tried = wider

    def score(self, setting: str, row: str, trial: Options) -> float:
        """The mean over the search's seeds; minus infinity where one diverged or is missing."""
        folders = [self.searched.get((setting, row, trial, seed)) for seed in self.study.search_seeds(setting)]
        values = [summary(folder).get(self.study.score, -math.inf) if folder else -math.inf for folder in folders]
        return statistics.fmean(values)

    def report(self, setting: str, found: Mapping[str, Options]) -> None:
        """Run the report seeds, one seed of all rows after the other."""
        seeds = sorted({seed for row in self.study.rows for seed in self.study.report_seeds(row)})[
            : 1 if self.smoke else None
        ]
        wanted = [
            (setting, row, found[row], seed)
            for seed, row in itertools.product(seeds, found)
            if seed in self.study.report_seeds(row)
        ]
        for key, folder in self.run(wanted):
            self.reported[key] = folder
            if not self.only_read:
                print(*key, {k: round(v, 4) for k, v in summary(folder).items() if isinstance(v, float)}, flush=True)


def extended(tried: list[Options], best: Options) -> list[Options]:
    """The trials and one beyond the edge at which the best's rate lies: a third or three times of it, 1e-5 to 1."""
    rates, (_, *others) = [rate_of(trial) for trial in tried], best
    if rate_of(best) == min(rates) > 1e-5:
        return [(f"lr={rate_of(best) / 3:.0e}", *others), *tried]
    if rate_of(best) == max(rates) < 0.3:
        return [*tried, (f"lr={rate_of(best) * 3:.0e}", *others)]
    return tried


def rate_of(trial: Options) -> float:
    """The learning rate, which is what each trial begins with."""
    return float(trial[0].removeprefix("lr="))


# --------------------------------------------------------------------------------------------------------------- tables


def summary(folder: Path) -> dict[str, Any]:
    """Of a finished run; nothing of another."""
    done = folder / "DONE"
    values: dict[str, Any] = json.loads(done.read_text()) if done.exists() else {}
    return values


def write(table: Path, finder: Finder, command: str) -> None:
    """A line a run, and a line for each last epoch of a task and each boundary."""
    lines, curves = [], []
    for (setting, row, trial, seed), folder in sorted(finder.reported.items(), key=lambda item: str(item[0])):
        names = {"setting": setting, "row": row, "searched": " ".join(trial), "seed": seed}
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
        scored = next(key for key in SCORES if key in epochs[-1])
        lines.append(
            names
            | {key: value for key, value in end.items() if key != "rows_sha256"}
            | {
                "epochs": epochs[-1].get("epoch"),
                "kept": statistics.fmean(kept) if kept else None,
                "last_two": statistics.fmean(entry[scored] for entry in [*ends.values()][-2:]),
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
                "boundary/dormant_ratio_before",
                "boundary/plasticity_gap",
                "boundary/plasticity_gap_low",
                "boundary/plasticity_gap_high",
                "boundary/alignment_before",
                "boundary/output_scale_before",
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
