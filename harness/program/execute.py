"""Run one configuration of any program: skip a finished run, resume an interrupted one, share the first phase."""

import contextlib
import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf

from harness.config.build import build
from harness.config.direction import better_direction, check_direction
from harness.config.errors import ConfigError
from harness.config.paths import expanded, without_folders
from harness.program.outcome import Outcome, job
from harness.run.first_phase import shared_first_phase
from harness.run.folder import CheckFiles, Run
from harness.run.gpus import own_gpu
from harness.run.identity import check_name, digest, one_spelling, own_name
from harness.run.tracker import Tracker

log = logging.getLogger(__name__)
State = dict[str, Any]
# A shared first phase was trained by a run of some other method, so that its states of method and trigger are dropped.
NO_METHOD = {"method": None, "trigger": None}


class Task(Protocol):
    """The part of a program's task that this module needs."""

    @property
    def device(self) -> torch.device:
        """The device of the state's tensors."""

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, in the unit in which rows count `step`."""

    @property
    def headline(self) -> str:
        """Name of the summary's number that is shown and returned, such as `test/accuracy`."""

    @property
    def guessed(self) -> float | None:
        """The headline's value for a network that has learned nothing and guesses; None if that is not known."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of numbers at the end of a phase that a search may score trials by; the first is the default."""

    def identity(self) -> dict[str, Any]:
        """Return what the run's numbers depend on (see `harness.run.identity`)."""

    def first_phase_identity(self) -> dict[str, Any] | None:
        """Return what the first phase depends on; None if it is not shared."""


T = TypeVar("T", bound=Task)


def _one_process(task: Any) -> contextlib.AbstractContextManager[bool]:
    """Return the context of a run of one process, which keeps the run folder."""
    return contextlib.nullcontext(True)


@dataclass(frozen=True)
class Program(Generic[T]):
    """A trainer, as `execute` runs it.

    Attributes:
        make_task: checks the options and builds everything that is fixed before the first step; it writes nothing.
        train: `train(task, run, state, stop)` trains from `state` (None: from the start) to the end of phase
            `stop - 1` (None: of the run), within `run`, and returns a summary with `seconds`. A state has `step` and
            `method`.
        groups: config groups whose names begin the folder's name, such as ("benchmark", "dataset").
        load: `load(config, state)` returns the trained networks as a `harness.trained.load.Trained`.
        check_files: see `harness.run.folder.Run`.
        processes: the context of a run of several processes. It yields True in the process that keeps the run folder;
            in the others it first does their part of the training, and then yields False.
    """

    make_task: Callable[[DictConfig], T]
    train: Callable[[T, Run, State | None, int | None], dict[str, Any]]
    groups: tuple[str, ...]
    load: Callable[[DictConfig, State], Any]
    check_files: CheckFiles | None = None
    processes: Callable[[T], contextlib.AbstractContextManager[bool]] = _one_process


def execute(config: DictConfig, program: Program[T]) -> float:
    """Train one configuration, unless it is done already; an interrupted run is resumed.

    With `only_first_phase=true` the shared first phase alone is trained. `config.device` becomes the reserved GPU.

    Returns:
        The headline's value, which `hydra/sweeper=optuna` optimises. It is NaN in a process that does not keep the
        folder, with `only_first_phase=true`, and where the summary lacks the headline.

    Raises:
        SystemExit: in a single run, after an error that its user can mend: 2 for an option, 3 for the training. In a
            sweep that error itself is raised.
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
        remark = no_better_than_guessing(task, value)
        outcome.result = f"{task.headline} {value:.4f} in {summary['seconds']:.1f} s{remark}"
        return value


def run_to_end(
    config: DictConfig, program: Program[T], task: T, outcome: Outcome, wait: bool = False
) -> dict[str, Any]:
    """Train the run of a configuration to its end in its folder, and return its summary, also if it was done before.

    With `only_first_phase=true` the shared first phase alone is trained, and the summary holds no result.

    Args:
        config: the configuration.
        program: its program.
        task: what the program has made of the configuration.
        outcome: is told how the run ends.
        wait: whether to wait for another process that holds the run, and take its result.

    Raises:
        ConfigError: a name in `groups` cannot be part of a path, another process holds the run and `wait` is False, or
            `only_first_phase=true` where nothing is shared.
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
    with new_run(config, program, task, build("tracker", config.tracker, Tracker), wait) as run:
        if (summary := run.done) is not None:
            run.rewrite_damaged_files()
            value = summary.get(headline, math.nan)
            log.info("%s is done: %s %.4f%s", run.folder, headline, value, no_better_than_guessing(task, value))
            outcome.state = "skipped"
            return summary
        if outcome.tuned:
            log.info(outcome.tuned)
        if (state := run.resume(task.device)) is None:
            if (shared := first_phase(config, program, task)) is not None:
                state, rows = shared
                run.begin_from(Path(state["origin"]), state["step"])
                run.append_rows(rows)
        else:
            log.info("%s resumed at step %d", run.folder, state["step"])
        summary = program.train(task, run, state, None)
        run.finish(summary)
        value = summary.get(headline, math.nan)
        if no_better_than_guessing(task, value):
            log.info("plasticity is lost, or %s is too high, or training is too short:", rate_of(config))
        log.info("%s: %s %.4f%s", run.folder, headline, value, no_better_than_guessing(task, value))
        outcome.state = "done"
        return summary


def no_better_than_guessing(task: Task, value: float) -> str:
    """Return a remark if the headline is no better than a guessing network's, as after lr=1e6; else an empty text."""
    if (guessed := task.guessed) is None or math.isnan(value):
        return ""
    learned = value > guessed if better_direction(task.headline) == "maximize" else value < guessed
    return "" if learned else ", no better than guessing"


def rate_of(config: DictConfig) -> str:
    """Return the option that sets the optimizer's learning rate, with its value: `lr=0.001` or `optimizer.lr=0.001`."""
    rate = OmegaConf.select(config, "optimizer.lr", default=config.lr)
    return f"lr={rate}" if rate == config.lr else f"optimizer.lr={rate}"


def first_phase(config: DictConfig, program: Program[T], task: T) -> tuple[State, str] | None:
    """Return the state after the shared first phase and its rows; None if this run shares none.

    The phase is trained here if the cache lacks it.
    """
    phase_identity = without_folders(one_spelling(task.first_phase_identity()))
    if phase_identity is None or not config.cache:
        return None

    def train(entry: Run) -> dict[str, Any]:
        state = entry.resume(task.device)
        return program.train(task, entry, state and {**state, **NO_METHOD}, 1)

    cache = expanded(config.paths.cache)
    label = f"{config.program}-{'-'.join(_names(config, program.groups))}-s{config.seed}"
    options, every = OmegaConf.to_yaml(config, resolve=True), config.checkpoint.every_seconds
    state, rows = shared_first_phase(
        cache, label, phase_identity, options, train, task.device, every, program.check_files
    )
    return {**state, **NO_METHOD}, rows


def new_run(config: DictConfig, program: Program[T], task: T, tracker: Tracker | None, wait: bool = False) -> Run:
    """Return the run of a configuration, not yet open. Its folder's name ends in the digest of the run's identity.

    An existing folder of an older version is used instead. Older versions gave 1 and 1.0 two digests, and so two paths
    of one file; and they named a folder by the preset even if another environment was put into it, or by one
    environment even if a sequence of others took turns.

    Raises:
        ConfigError: a name in `groups` cannot be part of a path.
    """
    as_spelled = task.identity()
    numbers_spelled = one_spelling(as_spelled)
    identity = without_folders(numbers_spelled)
    runs = expanded(config.paths.runs) / config.program
    folder = runs / _folder_name(config, program, identity, NAMED_BY[0])
    identities = (identity, numbers_spelled, as_spelled)  # the newest first
    for named_by, older_identity in itertools.product(NAMED_BY, identities):
        with contextlib.suppress(ConfigError):  # a name that older versions refused, so they made no such folder
            older_folder = runs / _folder_name(config, program, older_identity, named_by)
            if not folder.exists() and older_folder.exists():
                folder, identity = older_folder, older_identity
    shown = OmegaConf.to_container(config, resolve=True)
    assert isinstance(shown, dict)
    for group, name in zip(program.groups, _names(config, program.groups), strict=True):
        shown[group] = {**shown[group], "name": name}
    return Run(
        folder,
        identity,
        OmegaConf.to_yaml(OmegaConf.create(shown)),
        tracker,
        config.checkpoint.every_seconds,
        config.checkpoint.keep,
        wait,
        headline=task.headline,
        check_files=program.check_files,
    )


# What a run folder is named by, newest first: the environments that take turns or the one in `env`, the one in `env`
# always, or the preset always.
NAMED_BY = ("environments", "environment", "preset")


def _folder_name(config: DictConfig, program: Program[T], identity: dict[str, Any], named_by: str) -> str:
    """Return a folder's name, such as `warm_start-cifar10-fire-s0-1a2b3c4d`; `named_by`: one of `NAMED_BY`."""
    *kind, method = _names(config, (*program.groups, "method"), named_by)
    return f"{'-'.join(kind)}-{method}-s{config.seed}-{digest(identity)}"


def _names(config: DictConfig, groups: tuple[str, ...], named_by: str = NAMED_BY[0]) -> list[str]:
    """Return the names of the groups' choices, see `NAMED_BY`."""
    names = []
    for group in groups:
        if named_by == "preset":
            name = str(config[group].name)
        else:
            sequence = OmegaConf.select(config, "benchmark.sequence") if named_by == "environments" else None
            name = own_name(group, config[group], sequence or ())
        names.append(check_name(f"{group}.name", name))
    return names
