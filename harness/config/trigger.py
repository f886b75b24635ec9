"""`trigger=`: when a method acts.

The choices are in conf/trigger. With `boundary` the method acts before each phase but the first, with `none` never. The
others are classes of `fire_core.triggers`: the method then acts after the steps at which the trigger fires, and learns
nothing of the boundaries. A step is one of the optimizer; for agents it is one decision.
"""

import copy
from collections.abc import Collection, Mapping
from typing import Any

from fire_core.methods import Method, Net
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.config.errors import ConfigError

AT_BOUNDARIES = {"name": "boundary"}  # not part of a run's identity, because older runs have no such option
NEVER = {"name": "none"}


def acts_at_boundaries(node: Mapping[str, Any]) -> bool:
    """Return whether the option `trigger=` has the method act at boundaries."""
    return dict(node) == AT_BOUNDARIES


def build_trigger(node: Mapping[str, Any]) -> Trigger | None:
    """Build the trigger of the option `trigger=`; None for `boundary` and `none`, which are no triggers of steps.

    Raises:
        ConfigError: an option of the trigger is wrong.
    """
    if dict(node) in (AT_BOUNDARIES, NEVER):
        return None
    trigger: Trigger = build("trigger", node, Trigger)
    return trigger


def check_trigger(
    node: Mapping[str, Any],
    trigger: Trigger | None,
    method: Method,
    net: Net,
    *,
    name: str,
    metrics: Collection[str],
    after: int,
    total_steps: int,
    restarts: bool = False,
) -> None:
    """Refuse a trigger that would start nothing, or that can never fire.

    Args:
        node: the options of `trigger=`.
        trigger: what `build_trigger` made of them.
        method: the method that the trigger starts.
        net: the networks; their weights do not matter.
        name: name of the method.
        metrics: names of the numbers that the trainer passes to the trigger at each step.
        after: steps (of agents decisions) before the first one at which the trigger may fire.
        total_steps: steps of the run, in the same unit.
        restarts: whether the trainer itself re-initializes networks when the trigger fires.

    Raises:
        ConfigError: the method does nothing at boundaries or changes modules there, or the trigger can never fire.
    """
    if acts_at_boundaries(node):
        return
    chosen = f"trigger={node['name']}"
    if not method.overrides("at_boundary") and (trigger is None or not restarts):
        raise ConfigError(f"{chosen} starts what a method does at boundaries: method={name} does nothing there")
    if method.overrides("reshape"):
        raise ConfigError(f"{chosen}: method={name} puts in new modules, which it can do at boundaries only")
    if trigger is not None:
        try:
            copy.deepcopy(trigger).start(net, metrics=metrics, total_steps=total_steps, after=after)
        except ValueError as error:
            raise ConfigError(f"{chosen}: {error}") from error
