"""Where every trainer asks its trigger, and what of it a checkpoint holds."""

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from fire_core.methods import Net
from fire_core.triggers import Firing, Trigger
from fire_core.triggers.readiness import Losses, ReadinessOnBatches
from harness.training.loop import Progress

State = dict[str, Any]


def start(
    learner: Progress,
    *,
    metrics: Collection[str],
    total_steps: int,
    after: int,
    losses: Losses,
    probe: Callable[[], object] | None = None,
    net: Net | None = None,
) -> None:
    """Make the learner's trigger ready, before the first step and after a resume.

    Args:
        learner: with its networks and the trigger's state.
        metrics: names of the numbers that `ask` gets.
        total_steps: optimizer steps of the run.
        after: optimizer steps before the first that is asked about.
        losses: of mini-batches of what is trained on, for readiness.
        probe: passes a batch through the networks; None: the training's own passes are looked at.
        net: what is measured; None: the learner's networks.
    """
    if learner.trigger is not None:
        net = learner.net if net is None else net
        if isinstance(learner.trigger, ReadinessOnBatches):
            learner.trigger.draw = losses
        learner.trigger.start(net, metrics=metrics, total_steps=total_steps, after=after, probe=probe)


def ask(learner: Progress, step: int, net: Net | None = None, /, **metrics: Tensor | float | None) -> Firing | None:
    """What the learner's trigger says after an optimizer step; None too if there is no trigger."""
    if learner.trigger is None:
        return None
    return learner.trigger.ask(step, learner.net if net is None else net, **metrics)


def trigger_state(trigger: Trigger | None) -> State | None:
    """For a checkpoint; None: there is no trigger."""
    return None if trigger is None else {"kind": str(trigger), "state": trigger.state_dict()}


def load_trigger(trigger: Trigger | None, saved: State | None) -> None:
    """Take back `trigger_state`'s; None: of a first phase in which no trigger was asked."""
    if trigger is not None and saved is not None:
        trigger.load_state_dict(saved["state"])


def check_trigger_state(trigger: Trigger | None, state: State, asked: bool, steps: int) -> None:
    """Raise a ValueError if a learner's state holds no state of its trigger that a run can resume from.

    Args:
        trigger: of the run.
        state: the learner's; that of a run without a trigger may lack the key.
        asked: whether the trigger is asked in the state's phase.
        steps: optimizer steps made.
    """
    saved = state.get("trigger")
    if trigger is None or (saved is None and not asked):
        return
    if not isinstance(saved, dict) or saved.get("kind") != str(trigger):
        raise ValueError(f"trigger must be the state of {trigger}, got {saved if saved is None else saved.get('kind')}")
    numbers = saved["state"]
    if not isinstance(numbers, dict):
        raise ValueError(f"trigger.state must have the fields of {trigger}")
    if numbers.keys() != trigger.state_dict().keys():
        raise ValueError(f"trigger.state must have the fields of {trigger}")
    for field, value in numbers.items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"trigger.state.{field} must be a number, got {value!r}")
    if (numbers["last"] or 0) > steps:  # not of the run's last step, which is not looked at
        raise ValueError(f"trigger.state.last must be one of the {steps} steps made, got {numbers['last']}")
