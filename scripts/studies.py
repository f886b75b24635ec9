"""The studies of docs/protocol.md: runs one of them, or goes on with it, and writes its tables as runs end.

    python -m scripts.studies figure2_small_a                 search where the study has one, then the report seeds
    python -m scripts.studies dial_labels workers=1           as many at once as that, on one GPU too; else all cores
    python -m scripts.studies figure2_small_a rows=fire,snp   these rows alone; the tables keep the others
    python -m scripts.studies figure2_small_a smoke           every row once, at scale=smoke, into runs/smoke

A study is data (`STUDIES`): settings x rows x seeds. What stands in its tables is done; an unfinished run
resumes from runs/studies/<study>. docs/results/studies/<study>.csv has a line a run, <study>.curves.csv a line an
epoch, or a task where epochs are many, <study>.search.csv a line a trial and seed of the search. What made a table
stands beside it in its `.provenance.json`.
"""

import csv
import io
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fire_core.tools.output import keep_output
from harness.config.groups import CONF
from harness.run import provenance
from harness.run.checkpoint import write_atomically
from harness.run.jobs import Job, run_jobs
from harness.tune.space import Dimension, space_of, trials

RESULTS = CONF.parent / "docs" / "results" / "studies"
QUIET = ("tracker=none", "progress=false", "threads=1", "checkpoint.keep=1")
SCORES = ("train/accuracy", "task/return")  # of which a program's rows have one; `last_two` is its mean
Options = tuple[str, ...]
Run = tuple[str, str, str, int]  # setting, row, what was searched, seed
Row = dict[str, Any]


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


# The defaults of these methods when the studies were frozen; S&P's and DASH's are the FIRE paper's values.
FROZEN_DEFAULTS: dict[str, Options] = {
    "snp": ("coef=0.8", "perturb=null"),
    "dash": ("minimum=0.05",),
    "muon": ("betas=[0.9,0.95]", "eps=1e-10"),
}


def frozen_defaults(name: str, group: str = "method") -> Options:
    """The options that hold a method to the defaults with which the studies were frozen."""
    return tuple(f"{group}.{option}" for option in FROZEN_DEFAULTS.get(name, ()))


def methods(*names: str) -> dict[str, Options]:
    """Rows that are called as their method."""
    return {name: (f"method={name}", *frozen_defaults(name)) for name in names}


ROWS_2A = methods(
    *("base", "full_reset", "fire", "snp", "dash", "fire_exact", "random_isometry"),
    *("parseval", "l2init", "redo", "snr", "cbp"),
) | {
    "fresh": ("method=base", "benchmark=continual", "benchmark.chunks=1", "epochs=10"),
    "muon": methods("muon")["muon"],
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


PENDULUM = (
    *("experiment=continual_double_pendulum", "benchmark.tasks=5"),
    *("networks.actor_depth=2", "networks.critic_depth=2", "updates=4"),
)
ROWS_SAC = methods("base", "full_reset", "random_isometry", "snp", "redo", "fire") | {
    "untouched": ("method=base", *restarts("keep", "keep")),
    "new_optimizer": ("method=base", *restarts("new", "keep")),
    "new_temperature": ("method=base", *restarts("keep", "new")),
    "fire_head_kept": ("method=fire", "method.layout={encoder:project,head:keep}", "method.name=fire_head_kept"),
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
    f"{reset}_{name}": (*methods(reset)[reset], *options)
    for reset, (name, options) in itertools.product(RESETS, OPTIMIZERS.items())
} | {"base_muon": (*methods("muon")["muon"], "method.lr=${lr}")} | {
    f"{reset}_muon": (
        *("method=chain", f"method.of={reset}+muon", "method.parts.muon.lr=${lr}"),
        *frozen_defaults(reset, f"method.parts.{reset}"),
        *frozen_defaults("muon", "method.parts.muon"),
    )
    for reset in RESETS[1:]
}  # fmt: skip
MUON = {name: tuple(word for word in row if "${lr}" not in word) for name, row in COMBINED.items() if "muon" in name}
# FIRE's rate alone; a rival's own options as conf/search.yaml has them.
SPACES = {
    row: tuple(replace(part, option=f"method.{part.option}") for part in space_of(row)) for row in ("snp", "parseval")
}
SPACES["layer_norm_decay"] = (Dimension("optimizer.weight_decay", (1e-3, 1.0), "log"),)
SPACES |= {
    row: (Dimension("method.lr" if row == "base_muon" else "method.parts.muon.lr", (3e-3, 3e-2), "log"),)
    for row in MUON
}
SCRAMBLES: dict[str, Options] = {f"search {number}": () for number in range(1, 6)}
JPEG = ("dataset=folder", "dataset.path=data/cifar10_jpeg", "cache=on")
SMALL = (*JPEG, "model.width=16")
HALF = ("precision=bfloat16",)
LABELS = "experiment=plasticity_random_labels"
STUDIES = {
    "figure2_small_a": Study(
        "vision",
        ("experiment=fig2a_cifar10", *SMALL, "epochs=5"),
        ROWS_2A,
        {name: range(111, 116) for name in ("base", "full_reset", "snp", "dash", "fire")} | {"*": range(111, 114)},
    ),
    "figure2_small_variants": Study(
        "vision",
        ("experiment=fig2a_cifar10", *SMALL),
        methods("base", "full_reset", "fire"),
        {"*": (116,)},
        {
            "float32": ("epochs=5",),
            "10 epochs": ("epochs=10",),
            "batch 128": ("epochs=5", "batch_size=128"),
            "bfloat16": ("epochs=5", *HALF),
        },
    ),
    "figure2_wide": Study(
        "vision",
        ("experiment=fig2a_cifar10", *JPEG, "epochs=20", *HALF),
        methods("base", "full_reset", "fire"),
        {"*": range(111, 114)},
    ),
    "figure2_small_b": Study(
        "vision", ("experiment=fig2b_cifar10", *SMALL, *HALF, "epochs=3"), ROWS_2BC, {"*": range(104, 107)}
    ),
    "figure2_small_c": Study(
        "vision",
        ("experiment=fig2b_cifar10", "benchmark=class_incremental", "benchmark.chunks=5", *SMALL, *HALF, "epochs=5"),
        ROWS_2BC,
        {"*": range(104, 107)},
    ),
    "sac_rows": Study("sac", PENDULUM, ROWS_SAC, TEN),
    "dial_labels": Study("vision", (LABELS,), DIAL, TEN, SHARES, (1e-3, 3e-3, 1e-2)),
    "dial_pixels": Study("vision", ("experiment=plasticity_permuted",), DIAL, TEN, SHARES, (1e-3, 3e-3, 1e-2)),
    "accumulation": Study("vision", (LABELS, "benchmark.tasks=100", "metrics=full"), ACCUMULATION, TEN),
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
    "fashion_labels": Study(
        "vision",
        (LABELS, "dataset=fashion_mnist", "epochs=100", "batch_size=16"),
        FASHION,
        {"*": range(101, 106)},
        rates=RATES,
    ),
    "resets_optimizers": Study("vision", (LABELS,), COMBINED, TEN, rates=(1e-3, 3e-3, 1e-2, 3e-2)),
    "resets_muon": Study(
        "vision",
        (LABELS,),
        MUON,
        {"*": range(111, 121)},
        rates=(1e-3, 1e-2),
        scrambled=9,
        spaces=SPACES,
    ),
}


# -------------------------------------------------------------------------------------------------------------- running


def main(arguments: Sequence[str]) -> None:
    """Run a study and write its tables."""
    name, *words = arguments or ("",)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [word for word in words if word.split("=")[0] not in ("smoke", "workers", "rows")]
    if name not in STUDIES or unknown:
        sys.exit(f"error: {' '.join(unknown) or name or 'no study'} is unknown; studies: {', '.join(STUDIES)}")
    study, smoke = STUDIES[name], "smoke" in words
    workers = int(given["workers"]) if "workers" in given else None
    chosen = given["rows"].split(",") if "rows" in given else list(study.rows)
    if missing := [row for row in chosen if row not in study.rows]:
        sys.exit(f"error: rows={','.join(missing)}: {name} has {', '.join(study.rows)}")
    runs = Path("runs") / ("smoke" if smoke else "studies") / name
    options = (*study.options, f"jobs_per_gpu={workers or 1}")
    if smoke:  # a few steps, of images the digits
        options = (
            *(word for word in options if not word.startswith(("dataset", "epochs", "benchmark.tasks"))),
            *(("dataset=digits",) if study.program == "vision" else ()),
            "scale=smoke",
        )
    study = replace(
        study, options=(*options, *QUIET, f"paths.runs={runs}"), rows={row: study.rows[row] for row in chosen}
    )
    finder = Finder(
        study, workers, None if smoke else Tables(RESULTS / f"{name}.csv", f"python -m scripts.studies {name}")
    )
    for setting in study.settings:
        found = finder.search(setting) if study.rates and not smoke else dict.fromkeys(chosen, ())
        finder.report(setting, found, first_seed_alone=smoke)
    print("one run of each row ended" if smoke else f"what was asked for is done: docs/results/studies/{name}.csv")


class Tables:
    """The tables of a study, which hold what is done: read at the start, written whenever a run has ended.

    Attributes:
        ends: what was searched and found of each report run.
        curves: of the same runs, the last epochs of tasks and the boundaries.
        scores: of each run of the search, which chooses among trials; minus infinity where it diverged.
    """

    def __init__(self, path: Path, command: str) -> None:
        self.path, self.command = path, command
        self.ends: dict[Run, Row] = {}
        self.curves: dict[Run, list[Row]] = {}
        self.scores: dict[Run, Row] = {}
        paths = self.paths()
        if stale := [table.name for table in paths if table.exists() and not provenance.is_current(table)]:
            sys.exit(f"error: {', '.join(stale)}: made with other numerics than today's; move it away to begin anew")
        ends, curves, scores = (read_csv(table) for table in paths)
        self.ends |= ((key_of(row), row) for row in ends)
        self.scores |= ((key_of(row), row) for row in scores)
        for row in curves:
            self.curves.setdefault(key_of(row), []).append(row)

    def paths(self) -> tuple[Path, Path, Path]:
        """Of the report's ends and curves, and of the search."""
        return self.path, self.path.with_suffix(".curves.csv"), self.path.with_suffix(".search.csv")

    def add(self, key: Run, folder: Path, score: str | None) -> None:
        """Take a run that has ended; `score` is what a run of the search is chosen by."""
        entry = provenance.of_folders([folder])
        names = dict(zip(("setting", "row", "searched", "seed"), key, strict=True))
        made = {"cpu": entry["cpu"], "precision": entry["precision"], "commit": entry["commit"]}
        ends, curves, scores = self.paths()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for table in (curves, ends) if score is None else (scores,):
            provenance.write(table, entry | {"command": self.command}, more=True)
        if score is None:
            self.ends[key] = names | end_of(folder) | made
            self.curves[key] = [names | row for row in curves_of(folder)]
            write_csv(curves, (row for rows in self.curves.values() for row in rows))
            write_csv(ends, self.ends.values())  # last: what stands here is done
        else:
            self.scores[key] = names | {score: summary(folder).get(score, -math.inf)} | made
            write_csv(scores, self.scores.values())


@dataclass
class Finder:
    """Runs what the tables lack; without tables, everything."""

    study: Study
    workers: int | None
    tables: Tables | None

    def run(self, wanted: Iterable[tuple[str, str, Options, int]], score: str | None = None) -> None:
        """Train what is wanted and is not done."""
        done: Mapping[Run, Any] = {} if self.tables is None else self.tables.scores if score else self.tables.ends
        study, jobs = self.study, dict[Job, Run]()
        for setting, row, trial, seed in wanted:
            key = setting, row, " ".join(trial), seed
            options = (*study.options, *study.settings[setting], *study.rows[row], *trial, f"seed={seed}")
            if key not in done:
                jobs[Job(study.program, options)] = key
        for ended in run_jobs(jobs, self.workers):
            print(*jobs[ended.job], {k: round(v, 4) for k, v in summary(ended.folder).items() if isinstance(v, float)})
            if self.tables is not None:
                self.tables.add(jobs[ended.job], ended.folder, score)

    def search(self, setting: str) -> dict[str, Options]:
        """The best trial of each row; rates go on past an edge at which a row is best."""
        tried = {row: self.study.trials(setting, row) for row in self.study.rows}
        while True:
            seeds = self.study.search_seeds(setting)
            wanted = [
                (setting, row, trial, seed) for row, seed in itertools.product(tried, seeds) for trial in tried[row]
            ]
            self.run(wanted, self.study.score)
            chosen = {row: max(tried[row], key=partial(self.score, setting, row)) for row in tried}
            wider = {row: extended(tried[row], chosen[row]) for row in tried}
            if wider == tried:
                return chosen
            tried = wider

    def score(self, setting: str, row: str, trial: Options) -> float:
        """The mean over the search's seeds."""
        assert self.tables is not None
        keys = [(setting, row, " ".join(trial), seed) for seed in self.study.search_seeds(setting)]
        return statistics.fmean(float(self.tables.scores[key][self.study.score]) for key in keys)

    def report(self, setting: str, found: Mapping[str, Options], first_seed_alone: bool = False) -> None:
        """Run the report seeds, one seed of all rows after the other."""
        seeds = sorted({seed for row in self.study.rows for seed in self.study.report_seeds(row)})
        self.run(
            (setting, row, found[row], seed)
            for seed, row in itertools.product(seeds[: 1 if first_seed_alone else None], found)
            if seed in self.study.report_seeds(row)
        )


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

BOUNDARY = (
    "step",
    "phase",
    "boundary/test_accuracy_after",
    "boundary/previous_accuracy_after",
    "boundary/dfi_after",
    "boundary/dormant_ratio_before",
    "boundary/alignment_before",
    "boundary/output_scale_before",
)


def summary(folder: Path) -> Row:
    """Of a finished run; nothing of another."""
    done = folder / "DONE"
    values: Row = json.loads(done.read_text()) if done.exists() else {}
    return values


def rows_of(folder: Path) -> tuple[list[Row], list[Row]]:
    """The epochs and the boundaries of a run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "kind" not in row], [row for row in rows if row.get("kind") == "boundary"]


def end_of(folder: Path) -> Row:
    """What a run ended with: its summary, and means over its tasks."""
    if not (end := summary(folder)):
        return {"diverged": True}
    epochs, boundaries = rows_of(folder)
    kept = [row["boundary/previous_accuracy_after"] for row in boundaries if "boundary/previous_accuracy_after" in row]
    ends = {row["phase"]: row for row in epochs}
    scored = next(key for key in SCORES if key in epochs[-1])
    return {key: value for key, value in end.items() if key != "rows_sha256"} | {
        "epochs": epochs[-1].get("epoch"),
        "kept": statistics.fmean(kept) if kept else None,
        "last_two": statistics.fmean(row[scored] for row in [*ends.values()][-2:]),
        "act_seconds": sum(row["method/seconds"] for row in boundaries),
    }


def curves_of(folder: Path) -> list[Row]:
    """Of a finished run, its epochs, or the last one of each task where epochs are many, and its boundaries."""
    if not summary(folder):
        return []
    epochs, boundaries = rows_of(folder)
    shown = epochs if len(epochs) <= 50 else list({row["phase"]: row for row in epochs}.values())
    curves = [{key: value for key, value in row.items() if key not in ("kind", "lr")} for row in shown]
    return curves + [{"boundary": True} | {key: row[key] for key in BOUNDARY if key in row} for row in boundaries]


def key_of(row: Row) -> Run:
    """Which run a row of a table is of."""
    return row["setting"], row["row"], row["searched"], int(row["seed"])


def read_csv(path: Path) -> list[Row]:
    """The rows of a table, as text; none if there is no such file."""
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write a table whose columns are those of any row, sorted by setting, row and seed."""
    lines = sorted(rows, key=lambda row: (row["setting"], row["row"], row["searched"], int(row["seed"])))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in line.items()})
    write_atomically(path, text.getvalue().encode())


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
