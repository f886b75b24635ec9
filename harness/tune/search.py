"""A search: the same number of trials for each method, whose runs are jobs side by side."""

import copy
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
from harness.config.groups import methods_of
from harness.run.identity import digest, identity, without
from harness.run.jobs import Job, compose, run_jobs
from harness.tune.space import Dimension, check_space, space_of, trials
from harness.tune.table import Trial, append, read_table

LOWEST, HIGHEST = 0.1, 3.0  # learning rates, in units of the setting's


@dataclass(frozen=True)
class Search:
    """What is searched.

    Attributes:
        program: which trains the runs.
        options_of: the options of a method's runs, all but those that are searched and the seed.
        trials: of each method.
        seeds: of each trial.
        table: the file that keeps the trials.
        metric: the name of the value at the end of a task by which a trial is scored.
        is_usual: whether it is the one that is taken where none is named; another makes another search.
        varying: parts of the configuration in which the trials of one search differ.
    """

    program: str
    options_of: Callable[[str], Sequence[str]]
    trials: int
    seeds: range
    table: Path
    metric: str
    is_usual: bool = True
    varying: tuple[str, ...] = ("method", "seed")

    def compose(self, method: str) -> Any:
        """The configuration of a method's first run at its defaults."""
        return compose(self.program, [*self.options_of(method), f"seed={self.seeds[0]}"])

    def setting(self, method: str) -> str:
        """The digest of all that the trials of this search have in common, what is given of the method too."""
        tuned = [option for option in self.options_of(method) if option.startswith("tuned=")]
        values: Any = OmegaConf.to_container(self.compose(method), resolve=True)
        common: dict[str, Any] = without(identity(values), self.varying)
        if given := sorted(self.given(method) + tuned):
            common["given"] = given
        if not self.is_usual:
            common["metric"] = self.metric
        return digest(common)

    def given(self, method: str) -> list[str]:
        """The method's own options that are fixed in this search, as they were given: `method.coef=0.5`."""
        options = [option.lstrip("+") for option in self.options_of(method)]
        return [option for option in options if option.startswith("method.") and not option.startswith("method.of=")]


def tune(search: Search, methods: Sequence[str], workers: int | None = None) -> dict[str, list[Trial]]:
    """Run the trials that the table lacks; each is a row of the table as soon as its seeds have ended.

    Returns:
        All trials of each method, in the order of their numbers.

    Raises:
        ConfigError: a search space does not fit its class, the table is of another setting, or rows lack the metric.
    """
    done: dict[tuple[str, int], Trial] = {}
    lacking: dict[Job, tuple[str, int, int]] = {}
    for method in methods:
        config, setting = search.compose(method), search.setting(method)
        fixed = {option.partition("=")[0] for option in search.given(method)}
        known = read_table(search.table, setting, method, search.seeds)
        for number, point in enumerate(trials(search_space(method, config), search.trials)):
            choice = {option: value for option, value in point.items() if option not in fixed}
            options = [f"{option}={value}" for option, value in effective(config, choice).items()]
            now = " ".join(options)
            done[method, number] = known.get(number, Trial(setting, method, number, now, ()))
            if (then := done[method, number].options) != now:
                raise ConfigError(
                    f"table={search.table}: trial {number} of {method} was {then!r}, now {now!r}: name another"
                )
            for seed in search.seeds if number not in known else ():
                job = Job(search.program, (*search.options_of(method), *options, f"seed={seed}"))
                lacking[job] = (method, number, seed)
    scores: dict[tuple[str, int], dict[int, float]] = {}
    for ended in run_jobs(lacking, workers):
        method, number, seed = lacking[ended.job]
        of_trial = scores.setdefault((method, number), {})
        of_trial[seed] = score(ended.folder, search.metric)
        if len(of_trial) == len(search.seeds):
            trial = replace(done[method, number], scores=tuple(of_trial[seed] for seed in search.seeds))
            append(search.table, trial, search.seeds, search.program)
            print(f"{method} {number} {trial.options or '(defaults)'}: {trial.score:.4f}", flush=True)
            done[method, number] = trial
    return {method: [trial for (name, _), trial in done.items() if name == method] for method in methods}


def options_of_method(method: str) -> list[str]:
    """How a method is chosen on a program's command line; `fire+muon` is a chain."""
    return ["method=chain", f"method.of={method}"] if "+" in method else [f"method={method}"]


def search_space(method: str, config: DictConfig) -> list[Dimension]:
    """Return the learning rate, and the method's own options by their full names, of a chain those of each method.

    Raises:
        ConfigError: the method's class does not take a value of its space.
    """
    space = [Dimension("lr", (LOWEST * config.lr, HIGHEST * config.lr), "log")]
    for name, (place, node) in zip(method.split("+"), methods_of(config).items(), strict=True):
        check_space(node, space_of(name))
        space += [replace(part, option=f"{place}.{part.option}") for part in space_of(name)]
    return space


def effective(config: DictConfig, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice of options without those that have no effect beside the others, which a run would refuse."""
    chosen = copy.deepcopy(config)
    for option, value in choice.items():
        OmegaConf.update(chosen, option, value, force_add=True)
    idle = build("method", chosen.method, Method).idle_options()
    return {option: value for option, value in choice.items() if option.removeprefix("method.") not in idle}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run that has ended well; none of one that diverged."""
    if not (folder / "DONE").exists():
        return []
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def score(folder: Path, metric: str) -> float:
    """The mean of the value at the end of a task over the last half of the tasks; NaN of a run that diverged.

    Raises:
        ConfigError: no row of a run that has ended well has such a value.
    """
    rows = [row for row in rows_of(folder) if "kind" not in row]
    ends = {row["phase"]: row[metric] for row in rows if metric in row}
    if rows and not ends:
        names = [name for name, value in rows[-1].items() if "/" in name and isinstance(value, float)]
        raise ConfigError(f"metric={metric} is in no row of {folder}{near(metric, names)}")
    values = list(ends.values())[len(ends) // 2 :]
    return math.fsum(values) / len(values) if values else math.nan
