"""`method=chain 'method.of=[fire,muon]'`: build the methods that a chain names."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from fire_core.methods.chain import Chain
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.given import given_options

# The name of a chain in run folders and figures: fire+muon.
OmegaConf.register_new_resolver("joined", "+".join, replace=True)


def chained(of: Sequence[str], parts: Mapping[str, Any], apart: bool = False) -> Chain:
    """The chain of the named methods.

    Args:
        of: names, in the order in which the methods act.
        parts: the options of every method by name.
        apart: see `Chain`.

    Raises:
        ConfigError: a name is unknown or stands twice, an option of a method is wrong, or is given of one that is not
            named.
        ValueError: the methods conflict.
    """
    names = [of] if isinstance(of, str) else list(of)
    for option in given_options():
        part = option.removeprefix("method.parts.").partition(".")[0]
        if option.startswith("method.parts.") and part not in names:
            raise ConfigError(f"{option} has no effect: method.of=[{','.join(names)}] does not name {part}")
    for name in names:
        if name not in parts:
            raise ConfigError(f"method.of={name} is unknown; accepted: {', '.join(sorted(parts))}")
        if names.count(name) > 1:
            raise ConfigError(f"method.of names {name} twice")
    return Chain({name: build(f"method.parts.{name}", parts[name]) for name in names}, apart)
