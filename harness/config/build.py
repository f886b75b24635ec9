"""Build what a configuration's group names in `_target_`."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.nn.parameter import is_lazy

from fire_core.ranges import check_arguments, shown
from harness.config.errors import ConfigError

T = TypeVar("T")
# Errors that a wrong value leads to. Any other is a fault of the code that is built, and shows its traceback.
ERRORS_OF_VALUES = (TypeError, ValueError, ImportError, RuntimeError, ArithmeticError, MemoryError)


def build(option: str, node: Mapping[str, Any], kind: type[T] | None = None, **other_arguments: Any) -> Any:
    """Call the class or function that a group's `_target_` names, and return its result.

    Args:
        option: name of the group, such as `model`, for messages.
        node: the group's options: `_target_`, `name`, which is not passed on, and the target's arguments, which are
            checked against its annotations.
        kind: class that the result must be of; None: any.
        **other_arguments: arguments of the target that are no options.

    Raises:
        Exception: what the target raises, if it is no error of a value.
        ConfigError: `_target_` names nothing, the target refuses an argument, or its result is of another class, or
            is a network with lazy layers, which have no weights yet.
    """
    arguments = {key: _resolved(node[key]) for key in node if key != "name"}
    target = find_target(option, node)
    for flag in ("_recursive_", "_partial_"):
        if not isinstance(arguments.get(flag, False), bool):
            raise ConfigError(f"{option}.{flag} must be true or false, got {shown(arguments[flag])}")
    try:
        check_arguments(target, arguments)
        result = instantiate(arguments, **other_arguments, _convert_="all")
    except ValueError as error:
        raise ConfigError(refusal_of(option, node, error)) from error
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        if isinstance(cause, ERRORS_OF_VALUES):
            message = refusal_of(option, node, cause)
            if isinstance(cause, TypeError) and "argument" in message and other_arguments:
                message += f" (besides its options it is given {', '.join(other_arguments)})"
            raise ConfigError(message) from cause
        if cause is not None:
            raise cause  # noqa: B904  # with the place in the code that is built
        raise
    if kind is not None and not isinstance(result, kind):
        made = type(result).__name__
        raise ConfigError(f"{option}._target_={node['_target_']} makes a {made}, not a {kind.__name__}")
    if isinstance(result, nn.Module):
        for name, tensor in (*result.named_parameters(), *result.named_buffers()):
            if is_lazy(tensor):
                raise ConfigError(
                    f"{option}={node.get('name', '?')} has lazy layers, and {name} has no shape yet: pass one example "
                    "through the network at the end of its constructor"
                )
    return result


def find_target(option: str, node: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the class or function that a group's `_target_` names.

    Args:
        option: name of the group, for messages.
        node: the group's options.

    Raises:
        ConfigError: `_target_` is missing, cannot be imported, or names neither a class nor a function.
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
    """Return a value of a configuration as plain Python, with its references such as `${lr}` followed.

    They are followed here because `instantiate` sees the group alone, without the options that they refer to.
    """
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def refusal_of(option: str, node: Mapping[str, Any], cause: Exception) -> str:
    """Return the target's message with the option's full name.

    `width must be >= 1` becomes `model.width must be >= 1` if `width` is one of the node's keys; else the message is
    preceded by the choice, `model=mlp: `.
    """
    text = " ".join(str(cause).split()) or type(cause).__name__
    first_word = re.split(r"[\s=.\[]", text, maxsplit=1)[0]
    return f"{option}.{text}" if first_word in node else f"{option}={node.get('name', '?')}: {text}"
