"""What restarts at a boundary: the options `boundary.*` of both agents."""

import logging
from dataclasses import dataclass
from typing import Annotated

import torch
from omegaconf import DictConfig

from fire_core.methods import Context, Method, Net
from fire_core.ranges import one_of
from fire_core.weights.layout import resolve
from harness.config.errors import ConfigError

log = logging.getLogger(__name__)
POLICY = {"optimizer": "new", "temperature": "new", "target": "copy"}  # unless the method's `restarts` departs


@dataclass
class Boundary:
    """What restarts at a boundary, beside what the method does to the weights: conf/boundary tells all."""

    optimizer: Annotated[str, one_of("auto", "new", "forget", "keep")] = "auto"
    target: Annotated[str, one_of("auto", "copy", "keep")] = "auto"
    replay: Annotated[str, one_of("auto", "new", "keep")] = "auto"

    @property
    def restarts_networks(self) -> bool:
        """Whether something restarts where a trigger fires, whatever the method does."""
        return bool({"new", "copy"} & {self.optimizer, self.target})


def settle_boundary(config: DictConfig, method: Method, new_data: bool) -> None:
    """Put what applies in the place of each `boundary` option that is left at `auto`.

    Args:
        config: the program's options; changed in place.
        method: as the run will use it.
        new_data: whether the agent is told that its observations change at boundaries.
    """
    boundary, name = config.boundary, config.method.name
    data = "new" if new_data else "keep"
    for part in [key for key, value in boundary.items() if value == "auto"]:
        usual = POLICY.get(part, data)
        boundary[part] = method.restarts.get(part, usual)
        if boundary[part] != usual:
            log.info("boundary.%s=%s, as method=%s needs; otherwise %s", part, boundary[part], name, usual)


def check_boundary(method: Method, name: str, *, optimizer: str, target: str) -> None:
    """Refuse options under which something would never be trained, or be changed twice.

    Args:
        method: as the run will use it.
        name: the method's.
        optimizer: `boundary.optimizer`.
        target: `boundary.target`.

    Raises:
        ConfigError: the method cannot work with these.
    """
    if method.acts_on_optimizer_alone and optimizer != "forget":
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
    """Update the target networks of `net` as the option says.

    Args:
        method: of the run.
        net: with its targets.
        context: with which the method has just acted on `net.modules`; None: it has not, so `act` and `follow` keep.
        how: act: the method acts on the target's own weights too. follow: the same, then the weights that it projects
            are copied from the trained network (biases stay the target's own). copy: the target becomes a copy of the
            trained network. keep: it stays as it is.
    """
    if how in ("act", "follow"):
        if context is None:
            return
        method.at_boundary(Net(net.targets, net.init, net.layout), context)
    for name, target in net.targets.items():
        trained = net.modules[name]
        if how == "follow":
            for entry in resolve(trained, getattr(method, "layout", None) or net.layout):
                if entry.action == "project":
                    with torch.no_grad():
                        target.get_parameter(entry.name).copy_(entry.parameter)
        elif how == "copy":
            target.load_state_dict(trained.state_dict())
