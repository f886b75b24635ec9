"""Build what a configuration's group names in `_target_`."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from fire_core.ranges import check_arguments, shown
from harness.config.errors import ConfigError

T = TypeVar("T")
# What a wrong value leads to; anything else is a fault of the code that is built, and shows its traceback.
OF_VALUES = (TypeError, ValueError, ImportError, RuntimeError, ArithmeticError, MemoryError)


def build(option: str, node: Mapping[str, Any], kind: type[T] | None = None, **also: Any) -> Any:
    """Instantiate `node`, less its `name`, with further keyword arguments.

    Args:
        option: the group's name.
        node: `_target_`, and the arguments that are options; they are checked against the target's annotations.
        kind: what must come out of it; None: anything.
        **also: the arguments that are no options.

    Raises:
        ConfigError: what the target says of its arguments, after the option's name.
    """
    arguments = {key: _resolved(node[key]) for key in node if key != "name"}
    target = find_target(option, node)
    for flag in ("_recursive_", "_partial_"):
        if not isinstance(arguments.get(flag, False), bool):
            raise ConfigError(f"{option}.{flag} must be true or false, got {shown(arguments[flag])}")
    try:
        check_arguments(target, arguments)
        made = instantiate(arguments, **also, _convert_="all")
    except ValueError as error:
        raise ConfigError(_say(option, node, error)) from error
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        if isinstance(cause, OF_VALUES):
            raise ConfigError(_say(option, node, cause)) from cause
        raise
    if kind is not None and not isinstance(made, kind):
        raise ConfigError(f"{option}._target_={node['_target_']} makes a {type(made).__name__}, not a {kind.__name__}")
    return made


def find_target(option: str, node: Mapping[str, Any]) -> Callable[..., Any]:
    """What `_target_` names.

    Raises:
        ConfigError: it names nothing that can be imported.
    """
    name = node.get("_target_")
    if not isinstance(name, str):
        raise ConfigError(f"{option}._target_ must be the name of a class or function, got {shown(name)}")
    try:
        target: Callable[..., Any] = get_object(name)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{option}._target_={name} cannot be imported: {reason}") from error
    if not callable(target):
        raise ConfigError(f"{option}._target_={name} is no class or function")
    return target


def _resolved(value: Any) -> Any:
    """A nested part of a configuration with its references (`${lr}`) followed, which need the whole of it."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _say(option: str, node: Mapping[str, Any], cause: Exception) -> str:
    """`width must be >= 1` becomes `model.width must be >= 1` when `width` is one of the node's keys."""
    text = " ".join(str(cause).split()) or type(cause).__name__
    named = re.split(r"[\s=.\[]", text, maxsplit=1)[0] in node
    return f"{option}.{text}" if named else f"{option}={node.get('name', '?')}: {text}"
