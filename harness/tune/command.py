"""Search the options of methods, alike for all of them, in any of the programs.

    python -m harness.tune program=vision method=fire trials=17
    python -m harness.tune program=vision experiment=plasticity_permuted benchmark.tasks=8 method=base,fire,fire+muon
    python -m harness.tune program=dqn experiment=continual_cartpole method=base,fire trials=9

Each method has the same number of trials: its defaults, then points that fill its space evenly: the options of
conf/search.yaml, and before them the learning rate, from a tenth to three times that of the setting. So base and full
reset are tuned too. A method's option that you give is fixed and not searched. A trial is scored by its seeds' mean of
the metric at the end of a task, over the last half of all tasks; returns and accuracies should be large, losses small.
Where vision tests on images, a tenth of the training images takes their place (holdout=0.1): nothing is chosen on
images that results report. The seeds are 10,000 and above, which leaves lower ones for the runs that are reported.

Options are those of the program (python -m vision.train --help), each with one value, and:
    program=  vision, language, dqn or sac
    method=   one, or several separated by commas; fire+muon is a chain. Left out: all that can act on this network
    trials=   of each method (9)
    metric=   what a trial is scored by; left out: the usual one of the program's setting
    seed=, seeds=   the first seed (10000), and how many a trial has (3)
    workers=  runs at once, each with one thread (0: as many as cores)
    table=    the file of the trials (runs/tune/<program>-<setting>-<hash of the search>.csv)
    publish=  a folder into which the best values go as well, in vision, such as conf/tuned/searched, whose files
              tuned=searched takes. Left out: nothing outside of runs/tune is written

A trial is a row of the table as soon as its seeds have ended. The same command, after Ctrl-C or a kill, goes on where
it was stopped and ends with the same winner. A file for each method beside the table has its best values, and the
command that runs them. HYDRA_FULL_ERROR=1 shows tracebacks.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from harness.config.arguments import parse_option, read_arguments, refuse_unknown
from harness.config.direction import better_direction
from harness.config.errors import ConfigError, near
from harness.config.given import lr_is_idle, own_rate
from harness.config.groups import choices, compose_with_hydra, groups_of
from harness.config.paths import expanded, place
from harness.process.signals import exit_on_signals
from harness.program.by_name import MODULES, program_of
from harness.program.execute import new_run
from harness.program.messages import exit_code, library_error, one_line, user_facing, wants_traceback
from harness.run.files import write_atomically
from harness.run.identity import digest
from harness.tune.search import Search, options_of_method, tune
from harness.tune.table import Trial, best

FIRST_SEED = 10_000
QUIET = ("tracker=none", "cache=off", "progress=false", "paths.runs=runs/tune")
DEFAULTS = {
    "program": "",
    "method": "",
    "trials": "9",
    "metric": "",
    "seed": str(FIRST_SEED),
    "seeds": "3",
    "workers": "0",
    "table": "",
    "publish": "",
}
SMALLEST = {"trials": 1, "seed": 0, "seeds": 1, "workers": 0}  # whole-number options with their smallest values
STOPPED = "stopped: the same command goes on"


@dataclass(frozen=True)
class Request:
    """A parsed and checked command line.

    Attributes:
        search: the search, with its table.
        methods: names of the methods whose options are searched.
        given: the program's options, as they were given.
        setting: the benchmark and the data set, or the environment, as part of file names.
        publish: folder of winners that `tuned=searched` reads; None: winners are only written beside the table.
        workers: number of runs at once; None: as many as cores.
    """

    search: Search
    methods: list[str]
    given: list[str]
    setting: str
    publish: Path | None
    workers: int | None


def main(argv: Sequence[str]) -> int:
    """Search, write and print the table and the winners, and return the exit code."""
    if {"-h", "--help"} & {*argv}:
        print(__doc__)
        return 0
    exit_on_signals()
    try:
        request = read_request(argv)
        check_writable(request)
        print(f"trials: {request.search.table}", flush=True)
        trials_by_method = tune(request.search, request.methods, request.workers)
        for method, trials in trials_by_method.items():
            print(f"{method:<20} {len(trials)} trials, best {write_best(request, method, trials)}", flush=True)
    except (KeyboardInterrupt, SystemExit) as stop:
        print(STOPPED, file=sys.stderr)
        return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
    except Exception as error:
        clearer_error = library_error(error) or error
        if wants_traceback() or not user_facing(clearer_error):
            raise
        print(f"error: {one_line(clearer_error)}", file=sys.stderr)
        return exit_code(clearer_error)
    return 0


def check_writable(request: Request) -> None:
    """Make the table's folder, and refuse folders into which nothing can be written when the first runs have ended.

    Raises:
        ConfigError: a folder cannot be made or written to.
    """
    table, publish = request.search.table, request.publish
    winners = folder_of_winners(table)
    if winners == table:
        raise ConfigError(f"table={table} needs an ending, such as .csv: the best values go to a folder of its name")
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {table}: {error.strerror or error} (see table=)") from None
    for option, folder in (("table", table.parent), ("table", winners), ("publish", publish)):
        existing = next((path for path in (folder, *folder.parents) if path.exists()), None) if folder else None
        if existing and not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise ConfigError(
                f"cannot write to {folder}: {existing} is no folder that can be written to (see {option}=)"
            )


def read_request(argv: Sequence[str]) -> Request:
    """Parse and check the command line: the options of the search and those of the program.

    Raises:
        ConfigError: an option is unknown or not accepted.
    """
    own, given = split_options(argv)
    program, methods = own["program"], own["method"].split(",") if own["method"] else []
    if program not in MODULES:
        wrong = f"program={program} is unknown{near(program, MODULES)}"
        raise ConfigError(wrong if program else f"program= is missing; accepted: {', '.join(MODULES)}")
    publish, table = _places_of(own)
    trainer = program_of(program)  # importing it also makes the types of its options known to Hydra
    for method in methods or ["base"]:
        check_method_name(method)
        check_given(program, method, given)
    _check_tuned(given, publish)
    seeds = range(int(own["seed"]), int(own["seed"]) + int(own["seeds"]))
    held_out = list[str]()  # the option that holds images out, once it is known that the metric needs it

    def options_of(method: str) -> list[str]:
        return [*QUIET, *held_out, *given, *options_of_method(method)]

    search = Search(program, options_of, int(own["trials"]), seeds, Path(), "")  # table and metric follow below
    for method in methods or ["base"]:
        if lr_is_idle(config := search.compose(method)):
            raise ConfigError(f"{own_rate(config)} does not follow lr=, which a search varies")
    config = search.compose(methods[0] if methods else "base")
    task = trainer.make_task(config)
    metric = own["metric"] or task.scores[0]
    if metric not in task.scores:
        raise ConfigError(f"metric={metric} is no number at the end of these tasks{near(metric, task.scores)}")
    if metric.startswith("test/") and "holdout" in config and not config.holdout:
        held_out.append("holdout=0.1")
        config = search.compose(methods[0] if methods else "base")
        if not config.holdout:
            raise ConfigError("holdout=0 would choose on the images that results report: leave it out, or give a share")
        trainer.make_task(config)  # refuses if there are too few images to hold some out
    first_task = getattr(getattr(task, "benchmark", None), "lead", 0)  # of language: a mixture may come first
    search = replace(search, metric=metric, has_default_metric=metric == task.scores[0], first_task=first_task)
    folder_name = new_run(config, trainer, task, None).folder.name
    setting = folder_name.rpartition(f"-s{config.seed}-")[0].removesuffix(f"-{config.method.name}")
    methods = methods or able_methods(search)
    search_digest = digest({"setting": search.setting(methods[0]), "seeds": [*seeds]})
    default_table = expanded(config.paths.runs) / f"{program}-{setting}-{search_digest}.csv"
    search = replace(search, table=table or default_table)
    return Request(search, methods, given, setting, publish, int(own["workers"]) or None)


def _places_of(own: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """Return the folder of `publish=` and the file of `table=`; None where an option is not given.

    Raises:
        ConfigError: one of them cannot be used.
    """
    program, publish, table = own["program"], None, None
    if own["publish"]:
        publish = expanded(own["publish"])
        if program != "vision":
            raise ConfigError(f"publish={publish} is for vision: {program} has no tuned=searched")
        if publish.is_file():
            raise ConfigError(f"publish={publish} is a file: name a folder")
    if own["table"]:
        table = expanded(own["table"])
        if table.is_dir():
            raise ConfigError(f"table={table} is a folder: name a file in it")
    return publish, table


def _check_tuned(given: Sequence[str], publish: Path | None) -> None:
    """Refuse values of `tuned=` that a search, or its publication, does not go with.

    Raises:
        ConfigError: see above.
    """
    tuned = next((option.partition("=")[2] for option in given if option.startswith("tuned=")), "auto")
    if tuned == "searched":
        raise ConfigError("tuned=searched is what a search gives: a search begins with tuned=auto or none")
    if publish and tuned != "auto":
        raise ConfigError(f"publish= is for tuned=auto, whose values tuned=searched completes: not with tuned={tuned}")


def split_options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split the command line into the search's own options, completed by defaults, and all others as they were given.

    Raises:
        ConfigError: an own option is empty or no whole number, or something is no option.
    """
    own, given = dict(DEFAULTS), list[str]()
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name == "winners":
            raise ConfigError("winners= is publish= now; without it nothing outside of runs/tune is written")
        if not equals or name.startswith("-"):
            raise ConfigError(f"{argument}: options are written option=value, and --help names them")
        if name not in own:
            given.append(argument)
            continue
        if not value.strip():
            raise ConfigError(f"{name}= is empty: is a shell variable not set?")
        own[name] = value
    for name, smallest in SMALLEST.items():
        if not re.fullmatch(r"\d{1,9}", own[name]) or int(own[name]) < smallest:
            raise ConfigError(f"{name}={own[name]} must be a whole number of at least {smallest}")
    methods = own["method"].split(",")
    if twice := {method for method in methods if methods.count(method) > 1}:
        raise ConfigError(f"method= names {sorted(twice)[0]} twice")
    for name in ("table", "publish"):
        if own[name] and (wrong := place(name, own[name])):
            raise ConfigError(wrong)
    return own, given


def check_method_name(method: str) -> None:
    """Refuse a name that is neither a method nor a chain such as `fire+muon`.

    Raises:
        ConfigError: the name is unknown; the message has the nearest names.
    """
    names = [name for name in choices("method") if name != "chain"]
    for name in method.split("+"):
        if name == "chain":
            raise ConfigError("method=chain is written method=fire+muon in a search")
        if name not in names:
            raise ConfigError(f"method={name} is unknown{near(name, names)}")


def check_given(program: str, method: str, given: Sequence[str]) -> None:
    """Refuse an option that the program does not have, or that has several values.

    Raises:
        ConfigError: an option is refused; for an unknown one the message has the nearest names.
    """
    config = compose_with_hydra(program, options_of_method(method))
    declared = [*groups_of(program), *(str(option) for option in config if option != "hydra")]
    accepted = list(dict.fromkeys([*DEFAULTS, *declared]))
    for option in given:
        name = option.lstrip("+~").partition("=")[0].partition(".")[0].partition("@")[0].partition("/")[0]
        if name not in (*accepted, "hydra"):
            raise ConfigError(f"option {name} is unknown{near(name, accepted)}")
        if name == "hydra":
            raise ConfigError(f"{option}: a search starts its runs itself, without Hydra's launchers and sweepers")
        if option.lstrip("+").startswith("optimizer.lr="):
            raise ConfigError(f"{option}: it would replace lr=, which a search varies: give lr=")
        if parse_option(option).is_sweep_override():
            raise ConfigError(f"{option} has several values: a search takes one, or searches the option itself")
    try:
        refuse_unknown(program, read_arguments(program, [*options_of_method(method), *given]))
    except ConfigError as error:
        raise ConfigError(f"{error} (method={method})" if "method." in str(error) else str(error)) from error


def able_methods(search: Search) -> list[str]:
    """Return all methods that can act on the setting's network, base first; print why each other one is left out."""
    program, able = program_of(search.program), ["base"]
    for name in choices("method", search.program):
        if name in ("base", "chain"):
            continue
        try:
            program.make_task(search.compose(name))
        except ConfigError as error:
            print(f"left out {name}: {one_line(error)}")
        else:
            able.append(name)
    return able


def write_best(request: Request, method: str, trials: Sequence[Trial]) -> str:
    """Write a method's best trial beside the table, and into `publish`; return the lines to print about it."""
    search = request.search
    winner = best(trials, more=better_direction(search.metric) == "maximize")
    if winner is None:
        return "none: all diverged"
    config = compose_with_hydra(search.program, [*search.options_of(method), f"seed={search.seeds[0]}"])
    command = f"{config.hydra.help.app_name} {shlex.join([*request.given, *options_of_method(method)])}"
    command = f"{command} {winner.options}".strip()
    values = OmegaConf.from_dotlist([f"lr={config.lr}", *winner.options.split()])
    for option in search.fixed_options(method):  # they were not searched, and are a part of what was scored
        name = option.partition("=")[0]
        value = OmegaConf.select(config, name)
        plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        OmegaConf.update(values, name, plain, force_add=True)
    write_winner(folder_of_winners(search.table) / f"{method}.yaml", values, command)
    lines = [f"{search.metric} {winner.score:.4f}  {winner.options or '(defaults)'}", f"  {command}"]
    if request.publish is not None:
        file = request.publish / request.setting.replace("-", "_") / f"{method}.yaml"
        lines.append(f"  {file} {'overwritten' if file.exists() else 'written'}")
        write_winner(file, values)
    return "\n".join(lines)


def folder_of_winners(table: Path) -> Path:
    """Return the folder, beside a table, of the files with the best values of each method."""
    return table.with_suffix("")


def write_winner(file: Path, options: DictConfig, command: str = "") -> None:
    """Write a method's best options into a file of the form that `tuned=searched` reads.

    Args:
        file: such as conf/tuned/searched/warm_start_digits/fire.yaml; fire+muon.yaml for a chain.
        options: their values, nested as in a configuration: `{"lr": 0.1, "method": {"blend": 0.5}}`.
        command: the command that trains with these options, written as a comment; empty: no comment.
    """
    values: Any = OmegaConf.to_container(options, resolve=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["# @package _global_", *([f"# {command}"] if command else [])]
    lines += [f"{option}: {on_one_line(value)}" for option, value in values.items()]
    write_atomically(file, "\n".join([*lines, ""]).encode())


def on_one_line(value: Any) -> str:
    """Return a value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=100_000, sort_keys=False).removesuffix("...\n").strip()
