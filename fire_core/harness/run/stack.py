"""Runs that differ in their seed alone, in one process: `stack=20` trains seeds `seed` to `seed` + 19.

Each run has its own folder, the one that it has when it is trained alone: finished ones are skipped, interrupted ones
resume, whoever began them.
"""

import contextlib
import copy
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from omegaconf import DictConfig

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import Outcome, job
from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.checkpoint import DamagedStateError
from fire_core.harness.run.execute import (
    ATTEMPTS,
    Program,
    State,
    Task,
    entry_label,
    is_summary,
    new_run,
    of_no_method,
    run_to_end,
)
from fire_core.harness.run.first_phase import empty, shared_first_phases
from fire_core.harness.run.folder import Run
from fire_core.harness.run.tracker import Tracker

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Task)
Summary = dict[str, Any]


@dataclass(frozen=True)
class Stacking(Generic[T]):
    """How a program trains several runs at once.

    Attributes:
        make_tasks: checks the options of a stack and builds what each of its runs needs (see `with_seed`).
        why_not: why these runs cannot be trained at once, None if they can.
        train: `train(tasks, runs, states, stop)` as `Program.train`, of several; in the place of a summary, why a run
            cannot go on.
        try_state: loads a state into a learner that is thrown away; raises a DamagedStateError if it cannot be loaded.
    """

    make_tasks: Callable[[DictConfig], list[T]]
    why_not: Callable[[Sequence[T]], str | None]
    train: Callable[[Sequence[T], Sequence[Run], Sequence[State | None], int | None], Sequence[Summary | TrainingError]]
    try_state: Callable[[T, State], None]


def execute_stack(config: DictConfig, program: Program[T], stacking: Stacking[T]) -> float:
    """Train one configuration with several seeds; where that cannot be done at once, one after the other.

    Returns:
        The mean of the runs' headlines.
    """
    with job(config) as outcome:
        tasks = stacking.make_tasks(config)
        configs = [with_seed(config, config.seed + i) for i in range(len(tasks))]
        if reason := stacking.why_not(tasks):
            log.warning("stack=%d: %s. The seeds are trained one by one", config.stack, reason)
            results = [_alone(one, program, task, outcome) for one, task in zip(configs, tasks, strict=True)]
        else:
            results = _train_together(configs, program, stacking, tasks, outcome)
        failed = {
            one.seed: result for one, result in zip(configs, results, strict=True) if not isinstance(result, dict)
        }
        if failed:
            seeds = ", ".join(map(str, failed))
            raise TrainingError(
                f"{len(failed)} of {len(configs)} seeds failed ({seeds}): {next(iter(failed.values()))}"
            )
        summaries, headline = [result for result in results if isinstance(result, dict)], tasks[0].headline
        values = [float(summary[headline]) for summary in summaries]
        mean, seconds = math.fsum(values) / len(values), math.fsum(summary["seconds"] for summary in summaries)
        outcome.result = f"{headline} {mean:.4f}, mean of {len(values)} seeds, in {seconds:.1f} s"
        return mean


def with_seed(config: DictConfig, seed: int) -> DictConfig:
    """The configuration of the run of one seed alone."""
    one = copy.deepcopy(config)
    one.seed, one.stack = seed, 1
    return one


def _alone(config: DictConfig, program: Program[T], task: T, outcome: Outcome) -> Summary | TrainingError:
    """Take one run to its end; its summary, or why it cannot go on."""
    try:
        return run_to_end(config, program, task, outcome)
    except TrainingError as error:
        log.warning("seed %d: %s", config.seed, error)
        return error


def _train_together(
    configs: Sequence[DictConfig], program: Program[T], stacking: Stacking[T], tasks: Sequence[T], outcome: Outcome
) -> list[Summary | TrainingError]:
    """Open all runs and take them to their ends; of each its summary, or why it cannot go on.

    Raises:
        ConfigError: another process holds one of the runs.
        TrainingError: none can go on, for there is no room for what they leave.
    """
    runs = [new_run(config, program, task, None) for config, task in zip(configs, tasks, strict=True)]
    with contextlib.ExitStack() as opened:
        for run in runs:
            opened.enter_context(run)
        ended, headline = [run.done for run in runs], tasks[0].headline
        done = {i: summary for i, summary in enumerate(ended) if summary is not None and is_summary(summary, headline)}
        results: dict[int, Summary | TrainingError] = {**done}
        todo = [i for i in range(len(runs)) if i not in done]
        log.info("%d of %d runs are done, such as %s", len(runs) - len(todo), len(runs), runs[0].folder)
        if todo:
            states = {i: _resume(runs[i], tasks[i], stacking) for i in todo}
            _take_first_phases(configs, program, stacking, tasks, runs, states)
            several = [tasks[i] for i in todo], [runs[i] for i in todo], [states[i] for i in todo]
            for i, result in zip(todo, stacking.train(*several, None), strict=True):
                results[i] = result
                if not isinstance(result, TrainingError):
                    runs[i].finish(result)
            _mirror(configs[0], [runs[i] for i in todo])
        outcome.state = "done" if todo else "skipped"
    return [results[i] for i in range(len(runs))]


def _resume(run: Run, task: T, stacking: Stacking[T]) -> State | None:
    """The state to go on from; checkpoints that cannot be loaded are put aside.

    Raises:
        TrainingError: they cannot be put aside.
    """
    for _ in range(run.keep + 1):
        if (state := run.resume(task.device)) is None:
            return None
        try:
            stacking.try_state(task, state)
            return state
        except DamagedStateError as error:
            run.forget_newest(str(error))
    raise TrainingError(f"no checkpoint in {run.folder} can be loaded: remove it to train anew")


def _take_first_phases(
    configs: Sequence[DictConfig],
    program: Program[T],
    stacking: Stacking[T],
    tasks: Sequence[T],
    runs: Sequence[Run],
    states: dict[int, State | None],
) -> None:
    """Give runs that have not begun the shared first phase, trained here where the cache has none."""
    shapes = {i: tasks[i].first_phase_identity() for i, state in states.items() if state is None}
    own = [i for i, shape in shapes.items() if shape is not None and configs[i].cache.enabled]

    def train(places: Sequence[int], entries: Sequence[Run]) -> Sequence[Summary | TrainingError]:
        several = [tasks[own[place]] for place in places]
        found = [_resume(entry, task, stacking) for entry, task in zip(entries, several, strict=True)]
        return stacking.train(several, entries, [of_no_method(state) for state in found], 1)

    for _ in range(ATTEMPTS):
        if not own:
            return
        shared = shared_first_phases(
            Path(configs[0].cache.dir),
            [entry_label(configs[i], program) for i in own],
            [shape for i in own if (shape := shapes[i]) is not None],
            [runs[i].config_yaml for i in own],
            train,
            tasks[0].device,
            runs[0].every_seconds,
            [runs[i].check for i in own],
        )
        damaged = []
        for i, found in zip(own, shared, strict=True):
            if found is None:
                continue
            state = of_no_method(found[0])
            assert state is not None
            try:
                stacking.try_state(tasks[i], state)
            except DamagedStateError as error:
                log.warning("the first phase in %s is damaged (%s): training it again", state["origin"], error)
                empty(Path(state["origin"]))
                damaged.append(i)
            else:
                states[i] = state
                runs[i].append_rows(found[1])
        own = damaged


def _mirror(config: DictConfig, runs: Sequence[Run]) -> None:
    """Mirror runs that have ended to their trackers, a few at a time: one process for each would fill the memory."""
    at_once = os.cpu_count() or 1
    for begin in range(0, len(runs), at_once):
        several = [(build("tracker", config.tracker, Tracker), run) for run in runs[begin : begin + at_once]]
        for tracker, run in several:
            tracker.start(run.folder, run.identity)
        for tracker, _ in several:
            tracker.finish()
