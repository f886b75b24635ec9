"""Where every trainer asks its trigger."""

from collections.abc import Callable, Collection

from torch import Tensor

from fire_core.methods import Net
from fire_core.triggers import Firing
from harness.training.learner import LearnerBase


def start(
    learner: LearnerBase,
    *,
    metrics: Collection[str],
    total_steps: int,
    after: int,
    probe: Callable[[], object] | None = None,
    net: Net | None = None,
) -> None:
    """Make the learner's trigger ready, before the first step and after a resume.

    Args:
        learner: with its networks and the trigger's state.
        metrics: names of the numbers that `ask` gets.
        total_steps: optimizer steps of the run.
        after: optimizer steps before the first that is asked about.
        probe: passes a batch through the networks; None: the training's own passes are looked at.
        net: what is measured; None: the learner's networks.
    """
    if learner.trigger is not None:
        net = learner.net if net is None else net
        learner.trigger.start(net, metrics=metrics, total_steps=total_steps, after=after, probe=probe)


def ask(learner: LearnerBase, step: int, net: Net | None = None, /, **metrics: Tensor | float | None) -> Firing | None:
    """What the learner's trigger says after an optimizer step; None too if there is no trigger."""
    if learner.trigger is None:
        return None
    return learner.trigger.ask(step, learner.net if net is None else net, **metrics)
