"""A search: the same number of trials for each method, whose runs are jobs side by side."""

import copy
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fire_core.methods import Method
from harness.config.build import build
from harness.config.errors import ConfigError, near
from harness.config.given import idle_beside
from harness.config.groups import methods_of
from harness.program.by_name import program_of
from harness.program.jobs import Job, compose, run_jobs
from harness.run.files import content_of, reading
from harness.run.identity import digest, identity, one_spelling, without
from harness.tune.space import Dimension, check_space, space_of, trials
from harness.tune.table import Trial, append, read_table

LOWEST_LR, HIGHEST_LR = 0.1, 3.0  # searched learning rates, as multiples of the setting's


@dataclass(frozen=True)
class Search:
    """The parameters of a search.

    Attributes:
        program: name of the program that trains the runs.
        options_of: `options_of(method)` returns the options of a method's runs, without the searched ones and the seed.
        trials: number of trials of each method.
        seeds: seeds of each trial.
        table: the csv file of the trials.
        metric: name of the number at the end of a task by which a trial is scored.
        has_default_metric: whether `metric` is the setting's default. Another metric makes another search, whose trials
            belong in another table.
        varying: keys of the configuration in which the trials of one search differ.
        first_task: number of the first phase that is a task, which scores begin with.
    """

    program: str
    options_of: Callable[[str], Sequence[str]]
    trials: int
    seeds: range
    table: Path
    metric: str
    has_default_metric: bool = True
    varying: tuple[str, ...] = ("method", "seed")
    first_task: int = 0

    def compose(self, method: str) -> Any:
        """Return the configuration of a method's first run, with its defaults and the first seed.

        It is a new copy each time, because a program's task settles options in the configuration that it is made from.
        """
        return copy.deepcopy(_composed_once(self.program, (*self.options_of(method), f"seed={self.seeds[0]}")))

    def setting(self, method: str) -> str:
        """Return the digest of everything that all trials of the method in this search have in common."""
        tuned = [option for option in self.options_of(method) if option.startswith("tuned=")]
        config = self.compose(method)
        values: Any = OmegaConf.to_container(config, resolve=True)
        run_identity = one_spelling(identity(values))
        common: dict[str, Any] = without(run_identity, self.varying)
        if "boundary" in common:  # an option of agents: `auto`, and the paper's values, depend on the method
            common["boundary"] = OmegaConf.to_container(config.boundary, resolve=False)
        fixed = [in_one_spelling(option, run_identity) for option in self.fixed_options(method)]
        if fixed or tuned:
            common["given"] = sorted(fixed + tuned)
        if not self.has_default_metric:
            common["metric"] = self.metric
        if self.first_task:  # older tables of such runs have scores that count the phases before the first task too
            common["first_task"] = self.first_task
        return digest(common)

    def fixed_options(self, method: str) -> list[str]:
        """Return the method's own options that are fixed in this search, as they were given: `method.coef=0.5`."""
        options = [option.lstrip("+") for option in self.options_of(method)]
        return [option for option in options if option.startswith("method.") and not option.startswith("method.of=")]


@functools.cache
def _composed_once(program: str, options: tuple[str, ...]) -> Any:
    """Return the configuration of a run; a search asks for that of each method several times before it trains."""
    return compose(program, options)


def in_one_spelling(option: str, run_identity: Mapping[str, Any]) -> str:
    """Return an option with its value as the run's identity spells it: `method.coef=1.0` for `method.coef=1`.

    Args:
        option: an option of the command line with its full name.
        run_identity: the identity of a run with this option.
    """
    name = option.partition("=")[0]
    value: Any = run_identity
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return option  # an idle option, which the identity does not have
        value = value[key]
    return f"{name}={value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"


def tune(search: Search, methods: Sequence[str], workers: int | None = None) -> dict[str, list[Trial]]:
    """Run the trials that the table lacks; each becomes a row of the table as soon as all its seeds have ended.

    Returns:
        All trials of each method, in the order of their numbers.

    Raises:
        ConfigError: a search space does not fit its class, the table is of another setting, or rows lack the metric.
    """
    all_trials: dict[tuple[str, int], Trial] = {}  # by method and number; without scores if not yet run
    # A run to train -> the method, the number and the seed of each trial that it is of; trials may have equal options.
    missing: dict[Job, list[tuple[str, int, int]]] = {}
    for method in methods:
        config, setting = search.compose(method), search.setting(method)
        kept = {option.partition("=")[0] for option in search.fixed_options(method)}
        kept |= idle_in_runs(search.program, config)
        in_table = read_table(search.table, setting, method, search.seeds)
        for number, point in enumerate(trials(search_space(method, config), search.trials)):
            choice = {option: value for option, value in point.items() if option not in kept}
            options = [f"{option}={value}" for option, value in effective(config, choice).items()]
            options_now = " ".join(options)
            trial = in_table.get(number, Trial(setting, method, number, options_now, ()))
            if trial.options != options_now:
                raise ConfigError(
                    f"table={search.table}: trial {number} of {method} was {trial.options!r}, now {options_now!r}: "
                    "name another"
                )
            all_trials[method, number] = trial
            if number not in in_table:
                for seed in search.seeds:
                    job = Job(search.program, (*search.options_of(method), *options, f"seed={seed}"))
                    missing.setdefault(job, []).append((method, number, seed))
    scores: dict[tuple[str, int], dict[int, float]] = {}  # method and number of the trial -> seed -> score
    for ended in run_jobs(missing, workers):
        for method, number, seed in missing[ended.job]:
            trial_scores = scores.setdefault((method, number), {})
            trial_scores[seed] = score(ended.folder, search.metric, search.first_task)
            if len(trial_scores) == len(search.seeds):
                trial = replace(all_trials[method, number], scores=tuple(trial_scores[s] for s in search.seeds))
                append(search.table, trial, search.seeds, search.program)
                print(f"{method} {number} {trial.options or '(defaults)'}: {trial.score:.4f}", flush=True)
                all_trials[method, number] = trial
    return {method: [trial for (name, _), trial in all_trials.items() if name == method] for method in methods}


def options_of_method(method: str) -> list[str]:
    """Return the options that choose a method on a program's command line; `fire+muon` is a chain."""
    return ["method=chain", f"method.of={method}"] if "+" in method else [f"method={method}"]


def search_space(method: str, config: DictConfig) -> list[Dimension]:
    """Return the dimensions that a search varies: the learning rate, and the method's options by their full names.

    Args:
        method: name of a method, or of a chain such as `fire+muon`.
        config: the configuration of a run of this method.

    Raises:
        ConfigError: the method's class does not accept a value of its space.
    """
    space = [Dimension("lr", (LOWEST_LR * config.lr, HIGHEST_LR * config.lr), "log")]
    for name, (place, node) in zip(method.split("+"), methods_of(config).items(), strict=True):
        check_space(node, space_of(name))
        space += [replace(dimension, option=f"{place}.{dimension.option}") for dimension in space_of(name)]
    return space


def idle_in_runs(program: str, config: DictConfig) -> set[str]:
    """Return options of the trainer that no run of this method reads, such as `lr` beside an optimizer of its own.

    A search does not vary them, because a run would refuse them.

    Args:
        program: name of the program.
        config: the configuration of a run of the method.
    """
    method = build("method", config.method, Method)
    if not method.overrides("optimizer") or program_of(program).make_task(copy.deepcopy(config)).reads_optimizer:
        return set()
    return {*idle_beside(method, config)}


def effective(config: DictConfig, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return chosen options without those that have no effect beside the others, which a run would refuse.

    Args:
        config: the configuration of a run of the method.
        choice: option's full name -> value.
    """
    chosen = copy.deepcopy(config)
    for option, value in choice.items():
        OmegaConf.update(chosen, option, value, force_add=True)
    idle = build("method", chosen.method, Method).idle_options()
    return {option: value for option, value in choice.items() if option.removeprefix("method.") not in idle}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a finished run; an empty list if it diverged."""
    with reading(folder):
        if content_of(folder / "DONE") is None:
            return []
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]


def score(folder: Path, metric: str, first_task: int = 0) -> float:
    """Return the mean of a metric at the ends of the last half of the tasks; NaN if the run diverged.

    All tasks are counted, and those of the last half that end without the metric, such as a return where no episode
    ended, are left out of the mean.

    Args:
        folder: the run's folder.
        metric: name of a number in its rows.
        first_task: number of the first phase that is a task.

    Raises:
        ConfigError: the run is finished, but no task of the last half ends with the metric.
    """
    rows = [row for row in rows_of(folder) if "kind" not in row]
    if not rows:
        return math.nan
    last_rows = {row["phase"]: row for row in rows if row["phase"] >= first_task}
    last_half = list(last_rows.values())[len(last_rows) // 2 :]
    values = [row[metric] for row in last_half if metric in row]
    if not values:
        if any(metric in row for row in rows):
            raise ConfigError(
                f"metric={metric} is in no row that ends one of the last {len(last_half)} tasks of {folder}: make "
                "tasks longer, or choose another metric="
            )
        names = [name for name, value in rows[-1].items() if "/" in name and isinstance(value, float)]
        raise ConfigError(f"metric={metric} is in no row of {folder}{near(metric, names)}")
    return math.fsum(values) / len(values)
