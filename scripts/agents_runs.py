"""Agents on streams of control tasks: the runs of docs/results/agents.md.

    python -m scripts.agents_runs out=FOLDER [csv=FOLDER] [setting=NAME] [method=NAMES] [smoke=true]

Every method is tuned alike, on seeds of its own and fewer tasks: its defaults and points that fill its space
(`harness.tune.space`), the learning rate before all. Then it is run with its best options on the seeds that
are reported. Runs are jobs, as many at once as cores. Trials that are in the table and runs that are finished are
skipped; so it goes on where it stopped. Of each run the csv has a row for each task: its return, and the state of the
networks as the task ended.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.run import provenance
from harness.run.jobs import Job, run_jobs
from harness.tune.search import Search, rows_of, tune
from harness.tune.table import best

FIRST = 10_000  # seed of trials
STATE = ["dormant_ratio", "stable_rank", "effective_rank", "dfi", "gradient_norm", "td_fresh", "td_old"]
CONTROLS = ("base", "optimizer_reset", "full_reset", "random_isometry")
COLUMNS = ["method", "seed", "task", "return", "evaluation", *STATE]
# FIRE with other treatments of the last layers: back to their initial weights, left as they are; and both layers of the
# head of DQN back to them, as the paper's code does behind its convolutions.
DQN_HEADS = {
    "fire_head_reinit": "{encoder:project,head.fc1:project,head.fc2:reinit}",
    "fire_head_kept": "{encoder:project,head.fc1:project,head.fc2:keep}",
    "fire_linear_reinit": "{encoder:project,head:reinit}",
}
CNN_HEADS = {"fire_linear_reinit": "{encoder:project,head:reinit}"}  # as the paper's code does
SAC_HEADS = {"fire_head_reinit": "{encoder:project,head:reinit}", "fire_head_kept": "{encoder:project,head:keep}"}


@dataclass(frozen=True)
class Setting:
    """A stream and what runs on it.

    Attributes:
        program: dqn or sac.
        options: of the program.
        tuning: further ones, of trials.
        methods: in the order in which they run.
        heads: layouts of FIRE that are methods of their own here; they take FIRE's options.
        trials: of each method.
        seeds: of a trial, and of a run.
        trigger: when methods act and `boundary` restarts, for base too, where a stream has no boundaries.
    """

    program: str
    options: tuple[str, ...]
    tuning: tuple[str, ...]
    methods: tuple[str, ...]
    heads: dict[str, str]
    trials: int
    seeds: tuple[int, int]
    trigger: tuple[str, ...] = ()


SETTINGS = {
    "continual_cartpole": Setting(
        "dqn",
        ("experiment=continual_cartpole",),
        ("benchmark.tasks=5",),
        (*CONTROLS, "fire", "snp", "fire_exact", "l2init", "redo", "pi", "cbp", "swr", "adamo", "c_chain"),
        DQN_HEADS,
        5,
        (3, 20),
    ),
    "continual_minatar": Setting(
        "dqn",
        ("experiment=continual_minatar",),
        ("benchmark.tasks=3",),
        (*CONTROLS, "fire", "snp", "redo"),
        CNN_HEADS,
        3,
        (1, 5),
    ),
    "continual_double_pendulum": Setting(
        "sac",
        ("experiment=continual_double_pendulum",),
        ("benchmark.tasks=4",),
        (*CONTROLS, "fire", "snp", "fire_exact", "l2init", "redo", "pi", "swr"),
        SAC_HEADS,
        3,
        (2, 10),
    ),
    "high_replay_ratio_cheetah": Setting(
        "sac",
        ("experiment=high_replay_ratio_cheetah",),
        ("benchmark.tasks=6",),
        (*CONTROLS, "fire", "snp", "redo", "fire_exact", "l2init", "swr"),
        SAC_HEADS,
        3,
        (2, 5),
        ("trigger=every", "trigger.steps=1000"),
    ),
}
SMOKE = ("scale=smoke", "benchmark.tasks=2")


class Runs:
    """Trials and runs of one setting.

    Args:
        name: of the setting.
        out: run folders go here.
        tables: csv files go here.
        smoke: runs of seconds.
    """

    def __init__(self, name: str, out: Path, tables: Path, smoke: bool) -> None:
        self.name, self.out, self.tables, self.smoke, self.setting = name, out, tables, smoke, SETTINGS[name]
        self.seeds = (1, 1) if smoke else self.setting.seeds
        self.trials = 2 if smoke else self.setting.trials
        self.workers = 1 if smoke else None  # as many as cores

    def options_of(self, method: str, kind: str, best: str = "") -> list[str]:
        """The options of a method's runs, all but the seed; `kind` is trials or runs."""
        quiet = ["tracker=none", "cache=off", "progress=false", f"paths.runs={self.out}/{self.name}/{kind}"]
        tuning = self.setting.tuning if kind == "trials" else ()
        layout = self.setting.heads.get(method)
        chosen = [f"method={method}"] if layout is None else ["method=fire", f"method.layout={layout}"]
        trigger = self.setting.trigger
        smoke = (*SMOKE, *(trigger and ("trigger.steps=300",))) if self.smoke else ()
        return [*quiet, *self.setting.options, *tuning, *trigger, *smoke, *chosen, *best.split()]

    def search(self, methods: Sequence[str]) -> dict[str, str]:
        """The best options of each method, apart by spaces; the trials are in the table."""
        search = Search(
            self.setting.program,
            lambda method: self.options_of(method, "trials"),
            self.trials,
            range(FIRST, FIRST + self.seeds[0]),
            self.tables / f"search_{self.name}.csv",
            ("task/return",),
            varying=("method", "seed", "boundary", "trigger"),
        )
        chosen = {method: best(trials, more=True) for method, trials in tune(search, methods, self.workers).items()}
        return {method: "" if trial is None else trial.options for method, trial in chosen.items()}

    def collect(self, methods: Sequence[str]) -> None:
        """Run these methods with their best options, and put their rows into the table."""
        sources = {method: "fire" if method in self.setting.heads else method for method in methods}
        options = self.search(list(dict.fromkeys(sources.values())))
        seeds = range(self.seeds[1])
        jobs: dict[Job, tuple[str, int]] = {}
        for method, source in sources.items():
            given = self.options_of(method, "runs", options[source])
            jobs |= {Job(self.setting.program, (*given, f"seed={seed}")): (method, seed) for seed in seeds}
        folders = {jobs[ended.job]: ended.folder for ended in run_jobs(jobs, self.workers)}
        table = self.tables / f"{self.name}.csv"
        for method in methods:
            rows = [row for seed in seeds for row in task_rows(method, seed, folders[method, seed])]
            write(table, method, rows)
            provenance.write(table, provenance.of_folders([folders[method, seed] for seed in seeds]), method)
            print(f"{self.name} {method}: {len(rows)} rows", flush=True)


def task_rows(method: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each task of a finished run; none of one that diverged."""
    written = rows_of(folder)
    before = {row["phase"] - 1: row for row in written if row.get("kind") == "boundary"}
    return [
        {"method": method, "seed": seed, "task": phase, "return": row["task/return"], "evaluation": row["eval/return"]}
        | {key: row.get(f"plasticity/{key}", before.get(phase, {}).get(f"boundary/{key}_before")) for key in STATE}
        for phase, row in ((row.get("phase"), row) for row in written)
        if "task/return" in row
    ]


def write(table: Path, method: str, rows: Sequence[dict[str, Any]]) -> None:
    """Put a method's rows in the place of those that a table has of it."""
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if table.exists():
        before = pd.read_csv(table)
        frame = pd.concat([before[before["method"] != method], frame])
    table.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(table, index=False, float_format="%.5g", lineterminator="\n")


def main(given: dict[str, str]) -> None:
    """Run what is asked for."""
    out, smoke = Path(given["out"]), given.get("smoke") == "true"
    tables = Path(given.get("csv", out / "tables"))
    for name in [given["setting"]] if "setting" in given else list(SETTINGS):
        runs = Runs(name, out, tables, smoke)
        every = (*runs.setting.methods, *runs.setting.heads)
        runs.collect(given["method"].split(",") if "method" in given else every)


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
