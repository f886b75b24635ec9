"""`trigger=`: when a method acts.

The choices are in conf/trigger. `boundary`: before each phase but the first. `none`: never. The others are of
`fire_core.triggers`: the method then acts after the steps (of the optimizer; of agents, decisions) at which the trigger
fires, and the boundaries are known to the stream alone.
"""

import copy
from collections.abc import Collection, Mapping
from typing import Any

from fire_core.methods import Method, Net
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.config.errors import ConfigError

AT_BOUNDARIES = {"name": "boundary"}  # the default, which is no part of what a run is: runs of before have no trigger
NEVER = {"name": "none"}


def acts_at_boundaries(node: Mapping[str, Any]) -> bool:
    """Whether the method is called at boundaries, for `trigger=`."""
    return dict(node) == AT_BOUNDARIES


def build_trigger(node: Mapping[str, Any]) -> Trigger | None:
    """The trigger of `trigger=`; None for `boundary` and `none`, which ask nothing.

    Raises:
        ConfigError: an option is wrong.
    """
    trigger: Trigger | None = None if dict(node) in (AT_BOUNDARIES, NEVER) else build("trigger", node, Trigger)
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
    """Refuse a trigger that can start nothing, or can never fire.

    Args:
        node: the options, for `trigger=`.
        trigger: made of them.
        method: that is to act.
        net: the networks, whatever their weights.
        name: the method's.
        metrics: names of the numbers that the trainer gives with each step.
        after: optimizer steps before the first that the trigger is asked about.
        total_steps: optimizer steps of the run.
        restarts: whether something beside the method's own act restarts where the trigger fires.

    Raises:
        ConfigError: with the reason.
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
