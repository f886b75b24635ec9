"""Search the options of methods, alike for all of them.

    python -m vision.tune experiment=plasticity_random_labels benchmark.tasks=8
    python -m vision.tune experiment=plasticity_random_labels benchmark.tasks=8 method=base,fire,fire+muon trials=17

Each method has the same number of trials: its defaults, then points that fill its space evenly: the options that its
yaml says (`fire_core.harness.options.search`), and before them the learning rate, from a tenth to three times that of
the setting. So base and full reset are tuned too. A trial is scored by its seeds' mean of the value at the end of a
task (as in the task_end columns) over the last half of the tasks. The seeds are 10,000 and above; seeds that results
in docs/results report are refused, and the pages refuse seeds that a search has used.

Options are those of `vision.train`, and:
    method=   several, separated by commas; fire+muon is a chain. Left out: all that can act on this network
    trials=   of each method (9)
    seed=, stack=   the first seed (10000), and how many of them train together (3)
    table=    the search (docs/results/plasticity/search_<benchmark>_<dataset>.csv)
    winners=  where the best values go, one entry for each method (conf/tuned/searched.yaml)

A trial is a row of the table as soon as it has ended. The same command goes on where it was stopped, runs only what the
table lacks, and prints the best trials. `vision.train ... tuned/searched=random_labels_digits_fire` takes them.
"""

import csv
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import CONF, EXIT_CONFIG, EXIT_TRAINING, one_line, user_facing
from fire_core.harness.options.errors import ConfigError
from fire_core.harness.options.search import Dimension, check_space, space_of, trials
from fire_core.harness.run.execute import new_run
from fire_core.harness.run.identity import digest, identity, without
from fire_core.harness.run.stack import execute_stack, with_seed
from fire_core.methods import Method, Net
from vision.task import Task
from vision.train import PROGRAM, STACKING
from vision.trials import Trial, append, best, read_table, write_winner

RESULTS = CONF.parent / "docs" / "results"
FIRST_SEED = 10_000
LOWEST, HIGHEST = 0.1, 3.0  # learning rates, in units of the setting's
SCORES = ("test/accuracy", "train/accuracy", "train/loss")  # of a row; the first that it has


@dataclass
class Search:
    """What is asked for on the command line."""

    options: list[str]  # of vision.train
    methods: list[str]
    trials: int
    seeds: range
    table: Path
    winners: Path


def main(argv: Sequence[str]) -> int:
    """Search, write the table and the winners, and print them."""
    try:
        search = parse(argv)
        for method in search.methods:
            done, chosen = tune(search, method)
            said = f"{chosen.score:.4f}  {chosen.options or '(defaults)'}" if chosen else "none: all diverged"
            print(f"{method:<20} {len(done)} trials, best {said}", flush=True)
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1" or not user_facing(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


def parse(argv: Sequence[str]) -> Search:
    """Split the command line into own options and those of the trainer.

    Raises:
        ConfigError: an own option is wrong, or a seed is one that results report.
    """
    own = {"method": "", "trials": "9", "seed": str(FIRST_SEED), "stack": "3", "table": "", "winners": ""}
    options = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name in own:
            own[name] = value
        elif name.startswith("-"):
            raise ConfigError(f"{argument}: options are written option=value; python -m pydoc vision.tune names them")
        else:
            options.append(argument)
    numbers = {}
    for name in ("trials", "seed", "stack"):
        if not re.fullmatch(r"\d{1,9}", own[name]) or int(own[name]) < (name != "seed"):
            raise ConfigError(f"{name}={own[name]} must be a whole number of at least {int(name != 'seed')}")
        numbers[name] = int(own[name])
    seeds = range(numbers["seed"], numbers["seed"] + numbers["stack"])
    search = Search(options, [], numbers["trials"], seeds, Path(own["table"]), Path(own["winners"]))
    config = compose(search, "base")
    if taken := sorted(reported_seeds(RESULTS, config) & set(seeds)):
        raise ConfigError(f"seed={taken[0]} is reported in docs/results: choose with others, such as seed={FIRST_SEED}")
    search.table = search.table if own["table"] else RESULTS / "plasticity" / f"search_{place(config)}.csv"
    search.winners = search.winners if own["winners"] else CONF / "tuned" / "searched.yaml"
    search.methods = own["method"].split(",") if own["method"] else fitting(search)
    if twice := {method for method in search.methods if search.methods.count(method) > 1}:
        raise ConfigError(f"method= names {sorted(twice)[0]} twice")
    return search


def place(config: DictConfig) -> str:
    """The setting's part of names of files and entries."""
    return f"{config.benchmark.name}_{config.dataset.name}"


def compose(search: Search, method: str, options: Sequence[str] = ()) -> DictConfig:
    """The configuration of a trial; method `fire+muon` is a chain."""
    chosen = [f"method={method}"] if "+" not in method else ["method=chain", f"method.of=[{method.replace('+', ',')}]"]
    seeds = [f"seed={search.seeds[0]}", f"stack={len(search.seeds)}"]
    quiet = ["tracker=none", "cache=off", "progress=false", "paths.runs=runs/tune"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("vision", [*quiet, *search.options, *seeds, *chosen, *options])


def fitting(search: Search) -> list[str]:
    """All methods that can act on the setting's network, base first."""
    names = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
    net = Net({"model": Task.from_config(compose(search, "base")).model}, {})
    found = ["base"]
    for name in names:
        if name in ("base", "chain"):
            continue
        try:
            method: Method = build("method", compose(search, name).method)
            method.check(net)
        except (ConfigError, ValueError) as error:
            print(f"left out {name}: {one_line(error)}")
        else:
            found.append(name)
    return found


def reported_seeds(results: Path, config: DictConfig) -> set[int]:
    """The seeds of runs of this benchmark and data set that committed results hold."""
    name = f"{config.benchmark.name}-{config.dataset.name}-"
    seeds = set[int]()
    for path in results.glob("**/*.runs.json"):
        seeds |= {int(seed) for seed in re.findall(rf'"{re.escape(name)}[^"]*-s(\d+)-', path.read_text())}
    for path in results.glob(f"plasticity/{place(config)}*.csv"):
        with path.open() as file:
            seeds |= {int(row["seed"]) for row in csv.DictReader(file)}
    return seeds


def tune(search: Search, method: str) -> tuple[list[Trial], Trial | None]:
    """Run what the table lacks of a method's trials, and write its best options.

    Returns:
        The trials, and the best of them; None if all diverged.

    Raises:
        ConfigError: its search space does not fit its class, or the table is of another setting.
    """
    config = compose(search, method)
    choices = trials(search_space(method, config), search.trials)
    what: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    setting = digest(without(identity(what, "stack"), ("method", "seed")))
    found = read_table(search.table, setting, method, search.seeds)
    for number, choice in enumerate(choices):
        if number not in found:
            options = [f"{option}={value}" for option, value in choice.items()]
            found[number] = Trial(setting, method, number, " ".join(options), run(search, method, options))
            append(search.table, found[number], search.seeds)
            print(f"{method} {number} {' '.join(options) or '(defaults)'}: {found[number].score:.4f}", flush=True)
    done = [found[number] for number in range(len(choices))]
    chosen = best(done, more=config.dataset.name != "bits")
    if chosen is not None:
        chain = method.split("+") if "+" in method else ()
        write_winner(search.winners, f"{place(config)}_{method}", chosen.options, config.lr, chain)
    return done, chosen


def search_space(method: str, config: DictConfig) -> list[Dimension]:
    """The learning rate, and the method's own options by their whole names.

    Raises:
        ConfigError: the method's class does not take a value of its space.
    """
    spaces = {name: space_of(name) for name in method.split("+")}
    for name, space in spaces.items():
        node = config.method if "+" not in method else config.method.parts[name]
        plain: Any = OmegaConf.to_container(node, resolve=True)
        check_space(plain, space)
    prefix = "method." if "+" not in method else "method.parts.{}."
    return [Dimension("lr", (LOWEST * config.lr, HIGHEST * config.lr), "log")] + [
        Dimension(prefix.format(name) + one.option, one.values, one.kind)
        for name, space in spaces.items()
        for one in space
    ]


def run(search: Search, method: str, options: Sequence[str]) -> tuple[float, ...]:
    """Train the seeds of a trial; their scores, NaN for those that diverged."""
    config = compose(search, method, options)
    try:
        execute_stack(config, PROGRAM, STACKING)
    except SystemExit as end:
        if end.code != EXIT_TRAINING:  # it diverged; what else ends a run ends the search
            raise
    alone = [with_seed(config, seed) for seed in search.seeds]
    return tuple(score(new_run(one, PROGRAM, PROGRAM.make_task(one), None).folder) for one in alone)


def score(folder: Path) -> float:
    """The mean of the value at the end of a task over the last half of the tasks; NaN of a run that diverged."""
    if not (folder / "DONE").exists():
        return math.nan
    ends: dict[int, float] = {}
    for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        if row.get("kind") != "boundary":
            ends[row["phase"]] = next(row[key] for key in SCORES if key in row)
    values = list(ends.values())[len(ends) // 2 :]
    return math.fsum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
