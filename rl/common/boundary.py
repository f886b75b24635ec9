"""The options `boundary.*` of both agents, which say what restarts at a boundary."""

import logging
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from omegaconf import DictConfig

from fire_core.methods import Context, Method, Net
from fire_core.ranges import one_of
from fire_core.weights.layout import resolve
from harness.config.errors import ConfigError

log = logging.getLogger(__name__)
# What `auto` stands for, unless the method's `restarts` says something else.
DEFAULTS = {"optimizer": "new", "temperature": "new", "target": "copy"}


@dataclass
class Boundary:
    """What restarts at a boundary besides what the method does to the weights; conf/boundary describes the values."""

    optimizer: Annotated[str, one_of("auto", "new", "forget", "keep")] = "auto"
    target: Annotated[str, one_of("auto", "copy", "keep")] = "auto"
    replay: Annotated[str, one_of("auto", "new", "keep")] = "auto"

    @property
    def restarts_networks(self) -> bool:
        """Whether something restarts when a trigger fires, whatever the method does."""
        return bool({"new", "copy"} & {self.optimizer, self.target})


def settle_boundary(config: DictConfig, method: Method, new_data: bool) -> None:
    """Replace each `boundary` option that is `auto` by the value that applies.

    Args:
        config: the program's options; changed in place.
        method: the method of the run.
        new_data: whether the agent is told that its observations change at boundaries.
    """
    boundary, name = config.boundary, config.method.name
    default_of_data = "new" if new_data else "keep"  # of replay and statistics
    for option in [key for key, value in boundary.items() if value == "auto"]:
        default = DEFAULTS.get(option, default_of_data)
        boundary[option] = method.restarts.get(option, default)
        if boundary[option] != default:
            log.info("boundary.%s=%s, as method=%s needs; otherwise %s", option, boundary[option], name, default)


def check_boundary(method: Method, name: str, *, optimizer: str, target: str) -> None:
    """Check that a method works with the options, so that all is trained and nothing is changed twice.

    Args:
        method: the method of the run.
        name: name of the method.
        optimizer: value of `boundary.optimizer`.
        target: value of `boundary.target`.

    Raises:
        ConfigError: the method cannot work with these values.
    """
    if method.needs_kept_optimizer and optimizer != "forget":
        instead = "brings a new one" if optimizer == "new" else "keeps it whole"
        raise ConfigError(
            f"method={name} resets the optimizer's state, while boundary.optimizer={optimizer} {instead}: take forget"
        )
    reshapes = method.overrides("reshape")
    if (reshapes or method.overrides("optimizer")) and optimizer != "new":
        what = "new parameters" if reshapes else "an optimizer of its own"
        raise ConfigError(f"method={name} brings {what}: it needs boundary.optimizer=new")
    if method.follows_gradients and target in ("act", "follow"):
        raise ConfigError(f"method={name} follows gradients, target networks have none: boundary.target=copy or keep")
    if reshapes and target in ("act", "follow"):
        raise ConfigError(f"method={name} acts on target networks itself: take boundary.target=keep or copy")
    if target == "follow" and not hasattr(method, "layout"):
        raise ConfigError(f"method={name} projects no weights that a target could follow: boundary.target=act or copy")


def update_targets(method: Method, net: Net, context: Context | None, how: str) -> None:
    """Update the target networks of `net` as `boundary.target` says.

    Args:
        method: the method of the run.
        net: the networks with their targets.
        context: the context with which the method has just acted on `net.modules`. None if it has not acted, and then
            `act` and `follow` keep the targets as they are.
        how: `act` lets the method act on the target's own weights too. `follow` does the same, and then copies the
            weights that the method's layout projects from the trained network (biases stay the target's own). `copy`
            makes the target a copy of the trained network. `keep` leaves it as it is.

    Raises:
        ValueError: `how` is none of these; an `auto` must have been settled before.
    """
    if how not in ("act", "follow", "copy", "keep"):
        raise ValueError(f"how={how!r}: act, follow, copy or keep")
    if how in ("act", "follow"):
        if context is None:
            return
        # The draws for the target network are those for the trained one.
        same_draws = torch.Generator().manual_seed(context.generator.initial_seed())
        method.at_boundary(Net(net.targets, net.init, net.layout), replace(context, generator=same_draws))
    for name, target in net.targets.items():
        trained = net.modules[name]
        if how == "follow":
            for entry in resolve(trained, getattr(method, "layout", None) or net.layout):
                if entry.action == "project":
                    with torch.no_grad():
                        target.get_parameter(entry.name).copy_(entry.parameter)
        elif how == "copy":
            target.load_state_dict(trained.state_dict())
