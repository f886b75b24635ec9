"""Build what a configuration's group names in `_target_`."""

import re
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from fire_core.harness.errors import ConfigError


def build(option: str, node: Mapping[str, Any] | None, **also: Any) -> Any:
    """Instantiate `node`, less its `name`, with further keyword arguments; None for None.

    Raises:
        ConfigError: what the target says of its arguments, after the option's name.
    """
    if node is None:
        return None
    arguments = {key: node[key] for key in node if key != "name"}
    try:
        return instantiate(arguments, **also, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        if isinstance(cause, (TypeError, ValueError, ImportError)):
            raise ConfigError(_say(option, node, cause)) from cause
        raise


def _say(option: str, node: Mapping[str, Any], cause: Exception) -> str:
    """`width must be >= 1` becomes `model.width must be >= 1` when `width` is one of the node's keys."""
    text = str(cause)
    named = re.split(r"[\s=]", text, maxsplit=1)[0] in node
    return f"{option}.{text}" if named else f"{option}={node.get('name', '?')}: {text}"
