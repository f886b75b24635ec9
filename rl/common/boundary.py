"""What becomes of target networks and of the optimizer when a method has acted: options, `method.boundary` in yaml."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fire_core.harness.options.build import build
from fire_core.harness.options.errors import ConfigError
from fire_core.methods import Context, Method, Net
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import parts_of

TARGETS = ("act", "follow", "copy", "keep")
OPTIMIZERS = ("keep", "forget", "new")


def build_method(node: Mapping[str, Any]) -> Method:
    """The method of a `method` group that also has `boundary`.

    Raises:
        ConfigError: an option is unknown, or leaves what the method adds without training.
    """
    for option, accepted in (("target", TARGETS), ("optimizer", OPTIMIZERS)):
        value = node["boundary"][option]
        if value not in accepted:
            raise ConfigError(f"method.boundary.{option}={value} is unknown; accepted: {', '.join(accepted)}")
    method: Method = build("method", {key: node[key] for key in node if key != "boundary"})
    kind, name, boundary = type(method), node["name"], node["boundary"]
    reshapes = kind.reshape is not Method.reshape
    if (reshapes or kind.optimizer is not Method.optimizer) and boundary["optimizer"] != "new":
        raise ConfigError(f"method={name} trains with an optimizer of its own: it needs method.boundary.optimizer=new")
    if method.follows_gradients and boundary["target"] in ("act", "follow"):
        raise ConfigError(
            f"method={name} follows gradients, target networks have none: method.boundary.target=copy or keep"
        )
    if reshapes and boundary["target"] in ("act", "follow"):
        raise ConfigError(f"method={name} acts on target networks itself: take method.boundary.target=keep or copy")
    return method


def forgetful(optimizer: torch.optim.Optimizer | None, how: str) -> list[torch.optim.Optimizer]:
    """The optimizers that a method makes forget what it has changed: none, unless `how` is "forget"."""
    return parts_of(optimizer) if how == "forget" else []


def next_optimizer(
    method: Method,
    net: Net,
    optimizer: torch.optim.Optimizer | None,
    how: str,
    default: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> torch.optim.Optimizer:
    """The optimizer of the phase that begins: the old one, or if `how` is "new" one that the method may choose."""
    if optimizer is None or how == "new":
        return method.optimizer(net, default)
    return optimizer


def update_targets(method: Method, net: Net, context: Context, how: str) -> None:
    """Bring the target networks of `net` to where the option says.

    Args:
        method: which has just acted on `net.modules`.
        net: with its targets.
        context: the moment.
        how: act: the method acts on the target's own weights too. follow: the same, then the weights that it projects
            are copied from the trained network (biases stay the target's own). copy: the target becomes a copy of the
            trained network. keep: it stays as it is.

    """
    if how in ("act", "follow"):
        method.at_boundary(Net(net.targets, net.init, net.layout), context)
    for name, target in net.targets.items():
        trained = net.modules[name]
        if how == "follow":
            layout = getattr(method, "layout", None) or net.layout
            projected = {entry.name for entry in resolve(trained, layout) if entry.action == "project"}
            for key in projected:
                with torch.no_grad():
                    target.get_parameter(key).copy_(trained.get_parameter(key))
        elif how == "copy":
            target.load_state_dict(trained.state_dict())
