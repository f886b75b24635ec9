"""Target networks and optimizers at a boundary: the options `boundary.*` of both agents."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from fire_core.harness.options.cli import CONF
from fire_core.harness.options.errors import ConfigError
from fire_core.methods import Context, Method, Net
from fire_core.methods.chain import Chain
from fire_core.weights.layout import resolve

METRICS = ("loss", "return")  # for triggers: of each step, and of each row, the mean over training episodes that ended


def boundary_of_chain(
    program: str, option: str, otherwise: str, of: str | Sequence[str], parts: Mapping[str, Any]
) -> str:
    """`${boundary_of_chain:dqn,target,act,${method.of},${method.parts}}`: `boundary.<option>` of a chain.

    It is that of the first part that acts at a boundary, so that `fire` and `fire` with more differ in the rest only.
    The optimizer is new where a part brings one.

    Args:
        program: whose table of conf/tuned says what each method alone has.
        option: of `boundary`.
        otherwise: the program's default.
        of: the parts in their order; a name that is unknown is refused where the chain is built.
        parts: the options of every method by name.
    """
    classes = {
        name: get_class(parts[name]["_target_"]) for name in ([of] if isinstance(of, str) else of) if name in parts
    }
    if option == "optimizer" and any(_overrides(method, "optimizer") for method in classes.values()):
        return "new"
    first = next((name for name, method in classes.items() if _overrides(method, "at_boundary")), None)
    table = OmegaConf.load(CONF / "tuned" / f"{program}.yaml")
    return str(OmegaConf.select(table, f"{first}.boundary.{option}", default=otherwise))


def _overrides(method: type, hook: str) -> bool:
    return getattr(method, hook, None) is not getattr(Method, hook)


OmegaConf.register_new_resolver("boundary_of_chain", boundary_of_chain, replace=True)


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
            for key in projected(method, net, name):
                with torch.no_grad():
                    target.get_parameter(key).copy_(trained.get_parameter(key))
        elif how == "copy":
            target.load_state_dict(trained.state_dict())


def projected(method: Method, net: Net, name: str) -> set[str]:
    """The names of the weights of a network that a method projects; of a chain, those of all parts that act."""
    if isinstance(method, Chain):
        acting = [part for part in method.methods.values() if part.overrides("at_boundary")]
        apart = {id(parameter) for parameter in method.left_alone(net)}
        owned = {key for key, parameter in net.modules[name].named_parameters() if id(parameter) in apart}
        return set().union(*(projected(part, net, name) - (owned if part.spares_frozen else set()) for part in acting))
    layout = getattr(method, "layout", None) or net.layout
    return {entry.name for entry in resolve(net.modules[name], layout) if entry.action == "project"}
