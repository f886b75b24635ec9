"""Build what a configuration's group names in `_target_`."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from fire_core.harness.options.errors import ConfigError


def build(option: str, node: Mapping[str, Any] | None, **also: Any) -> Any:
    """Instantiate `node`, less its `name`, with further keyword arguments; None for None.

    Raises:
        ConfigError: what the target says of its arguments, after the option's name.
    """
    if node is None:
        return None
    arguments = {key: _resolved(node[key]) for key in node if key != "name"}
    _check_flags(option, arguments)
    try:
        return instantiate(arguments, **also, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        if isinstance(cause, (TypeError, ValueError, ImportError)):
            raise ConfigError(_say(option, node, cause)) from cause
        raise


def _resolved(value: Any) -> Any:
    """A nested part of a configuration with its references (`${lr}`) followed, which need the whole of it."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _say(option: str, node: Mapping[str, Any], cause: Exception) -> str:
    """`width must be >= 1` becomes `model.width must be >= 1` when `width` is one of the node's keys."""
    text = str(cause)
    named = re.split(r"[\s=]", text, maxsplit=1)[0] in node
    return f"{option}.{text}" if named else f"{option}={node.get('name', '?')}: {text}"


def _check_flags(option: str, arguments: Mapping[str, Any]) -> None:
    """Words are no truth values: Hydra reads `no` and `off` as text, which python takes for true.

    Raises:
        ConfigError: text is given for an argument that is true or false.
    """
    try:
        accepted = inspect.signature(get_object(arguments["_target_"])).parameters
    except Exception:  # `instantiate` says it better
        return
    for key, value in arguments.items():
        if isinstance(value, str) and key in accepted and accepted[key].annotation in (bool, "bool"):
            raise ConfigError(f"{option}.{key} must be true or false, got {value!r}")
