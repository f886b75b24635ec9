"""Where every trainer asks its trigger."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fire_core.triggers import Firing
from harness.training.learner import LearnerBase


def start(task: Any, learner: LearnerBase, probe: Callable[..., Any] | None = None) -> None:
    """Make the learner's trigger ready, if it has one, before the first step and after a resume.

    Args:
        task: names the numbers that `ask` gets, the steps of the run and those before the first that is asked about.
        learner: with its networks and the trigger's state.
        probe: (task, learner) passes a batch through the networks; None: those of the training are looked at.
    """
    if learner.trigger is None:
        return
    learner.trigger.start(
        learner.net,
        metrics=task.METRICS,
        total_steps=task.total_steps,
        after=task.steps_before_trigger,
        probe=None if probe is None else functools.partial(probe, task, learner),
    )


def ask(learner: LearnerBase, step: int, /, **metrics: Tensor | float | None) -> Firing | None:
    """What the learner's trigger says after an optimizer step; None too if there is no trigger."""
    if learner.trigger is None:
        return None
    return learner.trigger.ask(step, learner.net, **metrics)
