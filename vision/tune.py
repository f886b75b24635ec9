"""Search the options of methods, alike for all of them.

    python -m vision.tune experiment=plasticity_random_labels benchmark.tasks=8
    python -m vision.tune experiment=plasticity_random_labels benchmark.tasks=8 method=base,fire,fire+muon trials=17

Each method has the same number of trials: its defaults, then points that fill its space evenly: the options of
conf/search.yaml (`harness.tune.space`), and before them the learning rate, from a tenth to three times that of the
setting. So base and full reset are tuned too. A trial is scored by its seeds' mean of the value at the end of a task
(as in the task_end columns) over the last half of the tasks. Where a stream tests on images, a tenth of the training
images takes their place (`holdout=0.1`): nothing is chosen on images that results report. The seeds are 10,000 and
above, which leaves lower ones for the runs that are reported.

Options are those of `vision.train`, and:
    method=   several, separated by commas; fire+muon is a chain. Left out: all that can act on this network
    trials=   of each method (9)
    seed=, seeds=   the first seed (10000), and how many a trial has (3)
    workers=  runs at once, each with one thread (0: as many as cores)
    table=    the search (runs/tune/search_<benchmark>_<dataset>.csv)
    winners=  where the best values go, one entry for each method (the folder conf/tuned/searched)

A trial is a row of the table as soon as its seeds have ended. The same command goes on where it was stopped, runs only
what the table lacks, and prints the best trials; `vision.train ... method=fire tuned=searched` takes one.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from fire_core.tools.output import keep_output
from harness.config.cli import EXIT_CONFIG, one_line, user_facing
from harness.config.errors import ConfigError
from harness.config.groups import CONF, choices
from harness.run.checkpoint import write_atomically
from harness.tune.search import Search, tune
from harness.tune.table import best
from vision.task import Task

TABLES = Path("runs/tune")
FIRST_SEED = 10_000
SCORES = ("test/accuracy", "train/accuracy", "train/loss")  # of a row; the first that it has
QUIET = ("tracker=none", "cache=off", "progress=false", "paths.runs=runs/tune")
OWN = {"method": "", "trials": "9", "seed": str(FIRST_SEED), "seeds": "3", "workers": "0", "table": "", "winners": ""}
LEAST = {"trials": 1, "seed": 0, "seeds": 1, "workers": 0}  # values of the options that are whole numbers


@dataclass(frozen=True)
class Request:
    """What is asked for on the command line; `workers` is None for as many as cores."""

    search: Search
    methods: list[str]
    winners: Path
    workers: int | None


def main(argv: Sequence[str]) -> int:
    """Search, write the table and the winners, and print them."""
    try:
        request = parse(argv)
        for method, trials in tune(request.search, request.methods, request.workers).items():
            config = request.search.compose(method)
            chosen = best(trials, more=config.dataset.name != "bits")
            said = "none: all diverged"
            if chosen is not None:
                said = f"{chosen.score:.4f}  {chosen.options or '(defaults)'}"
                write_winner(request.winners, place(config), method, f"lr={config.lr} {chosen.options}")
            print(f"{method:<20} {len(trials)} trials, best {said}", flush=True)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1" or not user_facing(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


def parse(argv: Sequence[str]) -> Request:
    """Split the command line into own options and those of the trainer.

    Raises:
        ConfigError: an own option is wrong.
    """
    own, options = dict(OWN), list[str]()
    for argument in argv:
        name, _, value = argument.partition("=")
        if name in own:
            own[name] = value
        elif name.startswith("-"):
            raise ConfigError(f"{argument}: options are written option=value; python -m pydoc vision.tune names them")
        else:
            options.append(argument)
    for name, least in LEAST.items():
        if not re.fullmatch(r"\d{1,9}", own[name]) or int(own[name]) < least:
            raise ConfigError(f"{name}={own[name]} must be a whole number of at least {least}")
    first, table, winners = int(own["seed"]), Path(own["table"]), Path(own["winners"])
    seeds = range(first, first + int(own["seeds"]))

    held = list[str]()

    def options_of(method: str) -> list[str]:
        chain = ["method=chain", f"method.of={method}"]
        return [*QUIET, *held, *options, *(chain if "+" in method else [f"method={method}"])]

    search = Search("vision", options_of, int(own["trials"]), seeds, table, SCORES)
    first_method = own["method"].split(",")[0] or "base"
    config = search.compose(first_method)
    if any(len(phase.test) for phase in Task.from_config(config).phases):
        held.append("holdout=0.1")
        Task.from_config(search.compose(first_method))
    if not own["table"]:
        search = replace(search, table=TABLES / f"search_{place(config)}.csv")
    methods = own["method"].split(",") if own["method"] else fitting(search)
    if twice := {method for method in methods if methods.count(method) > 1}:
        raise ConfigError(f"method= names {sorted(twice)[0]} twice")
    winners = winners if own["winners"] else CONF / "tuned" / "searched"
    return Request(search, methods, winners, int(own["workers"]) or None)


def place(config: DictConfig) -> str:
    """The setting's part of names of files and entries."""
    return f"{config.benchmark.name}_{config.dataset.name}"


def fitting(search: Search) -> list[str]:
    """All methods that can act on the setting's network, base first."""
    able = ["base"]
    for name in (name for name in choices("method") if name not in ("base", "chain")):
        try:
            Task.from_config(search.compose(name))
        except ConfigError as error:
            print(f"left out {name}: {one_line(error)}")
        else:
            able.append(name)
    return able


def write_winner(folder: Path, setting: str, method: str, options: str) -> None:
    """Write a method's best options, as on the command line, into the file that `tuned=searched` takes.

    Args:
        folder: of the files, such as conf/tuned/searched.
        setting: benchmark and data set, as `place` says.
        method: whose options these are; fire+muon for a chain.
        options: such as `lr=0.1 method.blend=0.5`.
    """
    values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(options.split()))
    path = folder / setting / f"{method}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{option}: {on_one_line(value)}" for option, value in values.items()]
    write_atomically(path, "\n".join(["# @package _global_", *lines, ""]).encode())


def on_one_line(value: Any) -> str:
    """A value as one line of yaml."""
    return yaml.safe_dump(value, default_flow_style=True, width=100_000, sort_keys=False).removesuffix("...\n").strip()


if __name__ == "__main__":
    keep_output()
    sys.exit(main(sys.argv[1:]))
