"""What `main` of every program does: skip a finished run, resume an interrupted one, share the first phase."""

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf

from harness.config.build import build
from harness.config.cli import Outcome, job
from harness.config.direction import better, check_direction
from harness.config.errors import ConfigError
from harness.config.paths import expanded
from harness.run.first_phase import shared_first_phase
from harness.run.folder import Run
from harness.run.gpus import own_gpu
from harness.run.identity import check_name, digest, one_spelling, own_name
from harness.run.tracker import Tracker

log = logging.getLogger(__name__)
State = dict[str, Any]
NO_METHOD = {"method": None, "trigger": None}  # of a shared first phase, which another method's run may have begun


class Task(Protocol):
    """What a program knows before its first step; the part that is asked for here."""

    @property
    def device(self) -> torch.device:
        """Where the state's tensors go."""

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, counted as the rows' `step` is."""

    @property
    def headline(self) -> str:
        """The number of the summary that is shown and returned."""

    @property
    def guessed(self) -> float | None:
        """What the headline may be of a network that has learned nothing and guesses; None: that is not known."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Numbers of the row that ends a phase by which a search may choose, the usual one first."""

    def identity(self) -> dict[str, Any]:
        """See `harness.run.identity`."""

    def first_phase_identity(self) -> dict[str, Any] | None:
        """The part of the identity that shapes the first phase; None: the first phase is not shared."""


T = TypeVar("T", bound=Task)


def _single(task: Any) -> contextlib.AbstractContextManager[bool]:
    return contextlib.nullcontext(True)


@dataclass(frozen=True)
class Program(Generic[T]):
    """A trainer, as `execute` runs it.

    Attributes:
        make_task: checks the options and builds what is fixed before the first step; nothing is written.
        train: `train(task, run, state, stop)` trains from `state` (None: from the start) up to phase `stop` (None: to
            the end), within `run`, and returns a summary with `seconds`; its state has `step` and `method`.
        groups: options whose names begin the folder's name, such as ("benchmark", "dataset").
        load: `load(task, state)` gives the networks of such a state, as a `harness.trained.load.Trained`.
        processes: for a run of several processes: a context that yields whether this one keeps the run folder; the
            others do their part before it yields.
    """

    make_task: Callable[[DictConfig], T]
    train: Callable[[T, Run, State | None, int | None], dict[str, Any]]
    groups: tuple[str, ...]
    load: Callable[[T, State], Any]
    processes: Callable[[T], contextlib.AbstractContextManager[bool]] = _single


def execute(config: DictConfig, program: Program[T]) -> float:
    """Train one configuration, unless that is done already; resume it where it was interrupted.

    Returns:
        The headline, which `hydra/sweeper=optuna` optimises; NaN in a process that does not keep the run folder.
    """
    with job(config) as outcome, own_gpu(config.device, config.jobs_per_gpu) as config.device:
        task = program.make_task(config)
        check_direction(task.headline)
        with program.processes(task) as keeps_folder:
            if not keeps_folder:
                outcome.state = "done"
                return math.nan
            summary = run_to_end(config, program, task, outcome)
        value = float(summary.get(task.headline, math.nan))
        end = no_better_than_guessing(task, value)
        outcome.result = f"{task.headline} {value:.4f} in {summary['seconds']:.1f} s{end}"
        return value


def run_to_end(config: DictConfig, program: Program[T], task: T, outcome: Outcome) -> dict[str, Any]:
    """Open the run's folder and take the run to its end; the summary, also of a run that was done before.

    Raises:
        ConfigError: a name in `groups` cannot be part of a path, or another process holds the run.
        TrainingError: training cannot continue, or a phase's or the run's end could not be written.
    """
    headline = task.headline
    if config.only_first_phase:
        if not config.cache:
            raise ConfigError("only_first_phase=true makes what is shared: not with cache=off")
        if first_phase(config, program, task) is None:
            raise ConfigError(f"only_first_phase=true: method={config.method.name} shares none")
        outcome.state = "done"
        return {headline: math.nan, "seconds": 0.0}
    with new_run(config, program, task, build("tracker", config.tracker, Tracker)) as run:
        if (summary := run.done) is not None:
            run.mend_texts()
            value = summary.get(headline, math.nan)
            log.info("%s is done: %s %.4f%s", run.folder, headline, value, no_better_than_guessing(task, value))
            outcome.state = "skipped"
            return summary
        if outcome.tuned:
            log.info(outcome.tuned)
        if (state := run.resume(task.device)) is None:
            if (taken := first_phase(config, program, task)) is not None:
                state, rows = taken
                run.begin_from(Path(state["origin"]), state["step"])
                run.append_rows(rows)
        else:
            log.info("%s resumed at step %d", run.folder, state["step"])
        summary = program.train(task, run, state, None)
        run.finish(summary)
        value = summary.get(headline, math.nan)
        if no_better_than_guessing(task, value):
            log.info("plasticity is lost, or lr=%s is too high, or training is too short:", config.lr)
        log.info("%s: %s %.4f%s", run.folder, headline, value, no_better_than_guessing(task, value))
        outcome.state = "done"
        return summary


def no_better_than_guessing(task: Task, value: float) -> str:
    """What is said beside a headline, such as that of lr=1e6, that a network which guesses has too; mostly nothing."""
    if (guessed := task.guessed) is None or math.isnan(value):
        return ""
    learned = value > guessed if better(task.headline) == "maximize" else value < guessed
    return "" if learned else ", no better than guessing"


def first_phase(config: DictConfig, program: Program[T], task: T) -> tuple[State, str] | None:
    """The state after the first phase and the rows of it, trained here if need be; None: it is not shared."""
    shape = one_spelling(task.first_phase_identity())
    if shape is None or not config.cache:
        return None

    def train(entry: Run) -> dict[str, Any]:
        begun = entry.resume(task.device)
        return program.train(task, entry, begun and {**begun, **NO_METHOD}, 1)

    cache = expanded(config.paths.cache)
    label = f"{config.program}-{'-'.join(_names(config, program.groups))}-s{config.seed}"
    options, every = OmegaConf.to_yaml(config, resolve=True), config.checkpoint.every_seconds
    state, rows = shared_first_phase(cache, label, shape, options, train, task.device, every)
    return {**state, **NO_METHOD}, rows


def new_run(config: DictConfig, program: Program[T], task: T, tracker: Tracker | None) -> Run:
    """The run of a configuration, not yet open. Its folder is named by what the run is.

    A folder of an older version, which named it by an option as it was spelled (1 and 1.0 were two), or by the preset
    that another environment was put into, is the run's where there is one.

    Raises:
        ConfigError: a name in `groups` cannot be part of a path.
    """
    spelled = task.identity()
    what = one_spelling(spelled)
    runs = expanded(config.paths.runs) / config.program
    folder = runs / _folder_name(config, program, what, own_names=True)
    for identity, own_names in ((spelled, True), (what, False), (spelled, False)):
        with contextlib.suppress(ConfigError):  # of a name that no older version took
            older = runs / _folder_name(config, program, identity, own_names)
            if not folder.exists() and older.exists():
                folder, what = older, identity
    shown = OmegaConf.to_container(config, resolve=True)
    assert isinstance(shown, dict)
    for group in program.groups:
        shown[group] = {**shown[group], "name": own_name(group, shown[group])}
    return Run(
        folder,
        what,
        OmegaConf.to_yaml(OmegaConf.create(shown)),
        tracker,
        config.checkpoint.every_seconds,
        config.checkpoint.keep,
        headline=task.headline,
    )


def _folder_name(config: DictConfig, program: Program[T], what: dict[str, Any], own_names: bool) -> str:
    *kind, method = _names(config, (*program.groups, "method"), own_names)
    return f"{'-'.join(kind)}-{method}-s{config.seed}-{digest(what)}"


def _names(config: DictConfig, groups: tuple[str, ...], own_names: bool = True) -> list[str]:
    names = [own_name(group, config[group]) if own_names else str(config[group].name) for group in groups]
    return [check_name(f"{group}.name", name) for group, name in zip(groups, names, strict=True)]
