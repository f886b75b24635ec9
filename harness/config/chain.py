"""`method=chain method.of=fire+muon`: build the methods that a chain names."""

from collections.abc import Mapping
from typing import Any

from fire_core.methods.chain import Chain
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.given import given_options
from harness.config.groups import choices


def chained(of: str, parts: Mapping[str, Any], apart: bool = False) -> Chain:
    """Build the chain of the methods that are named.

    Args:
        of: names of methods, joined by + in the order in which they act.
        parts: from the name of each method to its options; methods that are not in `of` are ignored.
        apart: see `Chain`.

    Raises:
        ConfigError: a name is unknown or stands twice, an option of a method is wrong, or an option is given for a
            method that `of` does not name, or the methods conflict.
    """
    names = of.split("+")
    for option in given_options():
        part = option.removeprefix("method.parts.").partition(".")[0]
        if option.startswith("method.parts.") and part not in names:
            raise ConfigError(f"{option} has no effect: method.of={of} does not name {part}")
    for name in names:
        if name not in parts:
            accepted = sorted({*parts, *choices("method")} - {"chain"})
            raise ConfigError(f"method.of={name} is unknown; accepted: {', '.join(accepted)}")
        if names.count(name) > 1:
            raise ConfigError(f"method.of names {name} twice")
    methods = {name: build(f"method.parts.{name}", parts[name]) for name in names}
    try:
        return Chain(methods, apart)
    except ValueError as error:
        option = f"apart={str(apart).lower()}" if str(error).startswith("apart") else f"of={of}"
        raise ConfigError(f"method.{option}: {error}") from error
