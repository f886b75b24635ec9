"""Start a trainer's trigger, and ask it after each step whether the method should act."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fire_core.triggers import Firing
from harness.training.learner import LearnerBase
from harness.training.uncompiled import uncompiled


def start(task: Any, learner: LearnerBase, probe: Callable[..., Any] | None = None) -> None:
    """Make the learner's trigger ready, before the first step and after a resume; nothing happens without a trigger.

    Args:
        task: gives the names of the numbers that `ask` is called with (`METRICS`), the steps of the run (`total_steps`)
            and the steps before the trigger may fire (`steps_before_trigger`).
        learner: has the networks and the trigger, whose state a resume has loaded.
        probe: `probe(task, learner)` passes a batch through the networks, for triggers that measure activations; None
            lets them measure the passes of the training itself.
    """
    if learner.trigger is None:
        return
    learner.trigger.start(
        learner.net,
        metrics=task.METRICS,
        total_steps=task.total_steps,
        after=task.steps_before_trigger,
        probe=None if probe is None else functools.partial(uncompiled(probe), task, learner),
    )


def ask(learner: LearnerBase, /, **metrics: Tensor | float | None) -> Firing | None:
    """Ask the learner's trigger after a step.

    Args:
        learner: has the trigger, or None in its place, and the number of the step.
        metrics: the numbers of this step that the task's `METRICS` names.

    Returns:
        Why the method should act now; None if it should not, or if there is no trigger.
    """
    if learner.trigger is None:
        return None
    return learner.trigger.ask(learner.step, learner.net, **metrics)
