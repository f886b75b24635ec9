"""Target networks and optimizers at a boundary: the options `boundary.*` of both agents."""

import torch

from fire_core.harness.options.errors import ConfigError
from fire_core.methods import Context, Method, Net
from fire_core.weights.layout import resolve


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
    reshapes = method.overrides("reshape")
    if (reshapes or method.overrides("optimizer")) and optimizer != "new":
        what = "new parameters" if reshapes else "an optimizer of its own"
        raise ConfigError(f"method={name} brings {what}: it needs boundary.optimizer=new")
    if method.follows_gradients and target in ("act", "follow"):
        raise ConfigError(f"method={name} follows gradients, target networks have none: boundary.target=copy or keep")
    if reshapes and target in ("act", "follow"):
        raise ConfigError(f"method={name} acts on target networks itself: take boundary.target=keep or copy")


def update_targets(method: Method, net: Net, context: Context, how: str) -> None:
    """Update the target networks of `net` as the option says.

    Args:
        method: it has just acted on `net.modules`.
        net: with its targets.
        context: that the method acted with.
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
