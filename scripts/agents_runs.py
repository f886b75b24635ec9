"""Agents on streams of control tasks: the runs of docs/results/agents.md.

    python -m scripts.agents_runs out=FOLDER [csv=FOLDER] [setting=NAME] [method=NAMES] [smoke=true]

Every method is tuned alike, on seeds of its own and fewer tasks: its defaults and points that fill its space
(`fire_core.harness.options.search`), the learning rate before all. Then it is run with its best options on the seeds
that are reported. Trials that are in the table and runs that are finished are skipped; so it goes on where it stopped.
Of each run the csv has a row for each task: its return, and the state of the networks as the task ended.
"""

import contextlib
import csv
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hydra
from omegaconf import DictConfig, OmegaConf

import rl.dqn.train as dqn
import rl.sac.train as sac
from fire_core.harness.options.cli import CONF, EXIT_TRAINING
from fire_core.harness.options.search import Dimension, check_space, space_of, trials
from fire_core.harness.run.execute import Program, Task, new_run
from fire_core.harness.run.identity import digest, identity, without
from fire_core.harness.run.stack import Stacking, execute_stack, with_seed
from vision.trials import Trial, append, best, read_table

T = TypeVar("T", bound=Task)
FIRST = 10_000  # seed of trials
LOWEST, HIGHEST = 0.1, 3.0  # learning rates, in units of the setting's
STATE = ["dormant_ratio", "stable_rank", "effective_rank", "dfi", "gradient_norm", "td_fresh", "td_old"]
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
        trigger: options of methods that act at boundaries, where a stream has none.
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
        ("base", "full_reset", "fire", "snp", "fire_exact", "l2init", "redo", "pi", "cbp", "c_chain"),
        DQN_HEADS,
        5,
        (3, 20),
    ),
    "continual_minatar": Setting(
        "dqn",
        ("experiment=continual_minatar",),
        ("benchmark.tasks=3",),
        ("base", "full_reset", "fire", "snp", "redo"),
        CNN_HEADS,
        3,
        (1, 5),
    ),
    "continual_double_pendulum": Setting(
        "sac",
        ("experiment=continual_double_pendulum",),
        ("benchmark.tasks=4",),
        ("base", "full_reset", "fire", "snp", "fire_exact", "l2init", "redo", "pi"),
        SAC_HEADS,
        3,
        (2, 10),
    ),
    "high_replay_ratio_cheetah": Setting(
        "sac",
        ("experiment=high_replay_ratio_cheetah",),
        ("benchmark.tasks=6",),
        ("base", "full_reset", "fire", "snp", "redo", "fire_exact", "l2init"),
        SAC_HEADS,
        3,
        (2, 5),
        ("trigger=every", "trigger.steps=1000"),
    ),
}
WITHIN = ("base", "l2init", "redo", "cbp", "c_chain")  # methods that do nothing at boundaries
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
        self.seeds = (1, 2) if smoke else self.setting.seeds
        self.trials = 2 if smoke else self.setting.trials

    def compose(self, method: str, kind: str, seed: int, options: Sequence[str] = ()) -> Any:
        """The configuration of the first of several runs; `kind`: trials or runs."""
        quiet = ["tracker=none", "cache=off", "progress=false", f"paths.runs={self.out}/{self.name}/{kind}"]
        tuning = self.setting.tuning if kind == "trials" else ()
        layout = self.setting.heads.get(method)
        chosen = [f"method={method}"] if layout is None else ["method=fire", f"method.layout={layout}"]
        trigger = () if method in WITHIN else self.setting.trigger
        smoke = (*SMOKE, *(trigger and ("trigger.steps=300",))) if self.smoke else ()
        named = [*quiet, *self.setting.options, *tuning, *trigger, *smoke, f"seed={seed}", *chosen]
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra.compose(self.setting.program, [*named, *options])

    def train(self, method: str, kind: str, seeds: range, options: Sequence[str]) -> list[Path]:
        """Train what is not finished; the folders of all."""
        config = self.compose(method, kind, seeds[0], [*options, f"stack={len(seeds)}"])
        alone = [with_seed(config, seed) for seed in seeds]
        if self.setting.program == "dqn":
            return train_together(config, alone, dqn.PROGRAM, dqn.STACKING)
        return train_together(config, alone, sac.PROGRAM, sac.STACKING)

    def search(self, method: str) -> str:
        """The best options of a method, apart by spaces; its trials are in the table."""
        seeds = range(FIRST, FIRST + self.seeds[0])
        config = self.compose(method, "trials", FIRST)
        lr = Dimension("lr", (LOWEST * config.lr, HIGHEST * config.lr), "log")
        space = space_of(method)
        plain: Any = OmegaConf.to_container(config.method, resolve=True)
        check_space(plain, space)
        named = [Dimension(f"method.{one.option}", one.values, one.kind) for one in space]
        whole: Any = OmegaConf.to_container(config, resolve=True)
        setting = digest(without(identity(whole, "stack"), ("method", "seed", "boundary", "trigger")))
        table = self.tables / f"search_{self.name}.csv"
        found = read_table(table, setting, method, seeds)
        for number, choice in enumerate(trials([lr, *named], self.trials)):
            if number not in found:
                options = [f"{option}={value}" for option, value in choice.items()]
                scores = tuple(score(folder) for folder in self.train(method, "trials", seeds, options))
                found[number] = Trial(setting, method, number, " ".join(options), scores)
                append(table, found[number], seeds)
                print(f"{self.name} {method} {number} {' '.join(options)}: {found[number].score:.2f}", flush=True)
        chosen = best(list(found.values()), more=True)
        return "" if chosen is None else chosen.options

    def collect(self, methods: Sequence[str]) -> None:
        """Run these methods with their best options, and write the table of all that is there after each."""
        table = self.tables / f"{self.name}.csv"
        for method in methods:
            options = self.search("fire" if method in self.setting.heads else method).split()
            seeds = range(self.seeds[1])
            folders = self.train(method, "runs", seeds, options)
            rows = [row for seed, folder in zip(seeds, folders, strict=True) for row in rows_of(method, seed, folder)]
            write(table, method, rows)
            print(f"{self.name} {method}: {len(rows)} rows", flush=True)


def train_together(
    config: DictConfig, alone: Sequence[DictConfig], program: Program[T], stacking: Stacking[T]
) -> list[Path]:
    """Train the runs of a stack, `alone` as each is by itself; their folders."""
    with diverging():
        execute_stack(config, program, stacking)
    return [new_run(one, program, program.make_task(one), None).folder for one in alone]


@contextlib.contextmanager
def diverging() -> Iterator[None]:
    """Runs that diverge end a program; what else ends it ends this one too."""
    try:
        yield
    except SystemExit as end:
        if end.code != EXIT_TRAINING:
            raise


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run; none of one that never began."""
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def score(folder: Path) -> float:
    """The mean of the returns of the last half of the tasks; NaN of a run that did not end."""
    returns = [row["task/return"] for row in read(folder) if "task/return" in row]
    late = returns[len(returns) // 2 :]
    return math.fsum(late) / len(late) if late and (folder / "DONE").exists() else math.nan


def rows_of(method: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each task of a finished run; none of one that diverged."""
    if not (folder / "DONE").exists():
        return []
    written = read(folder)
    before = {row["phase"] - 1: row for row in written if row.get("kind") == "boundary"}
    return [
        {"method": method, "seed": seed, "task": row["phase"], "return": row["task/return"]}
        | {"evaluation": row["eval/return"]}
        | {
            key: row.get(f"plasticity/{key}", before.get(row["phase"], {}).get(f"boundary/{key}_before"))
            for key in STATE
        }
        for row in written
        if "task/return" in row
    ]


def write(table: Path, method: str, rows: Sequence[dict[str, Any]]) -> None:
    """Put a method's rows in the place of those that a table has of it."""
    kept: list[dict[str, Any]] = []
    if table.exists():
        with table.open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if row["method"] != method]
    table.parent.mkdir(parents=True, exist_ok=True)
    new = table.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in [*kept, *rows]:
            writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()})
    os.replace(new, table)


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
