"""Options that the user has given and that have no effect beside the others."""

import re
from collections.abc import Iterable

from hydra.core.hydra_config import HydraConfig

from fire_core.methods import Method
from harness.config.errors import ConfigError


def names_of(overrides: Iterable[str]) -> tuple[str, ...]:
    """The dotted names that overrides such as `+method.coef=0.5` set."""
    return tuple(re.sub(r"^[+~]*", "", override).partition("=")[0] for override in overrides)


def given_options() -> tuple[str, ...]:
    """The dotted names of what this job's command line or sweep sets; none outside of a program.

    What files in conf/ set (experiments, tuned values) is not among them.
    """
    return names_of(HydraConfig.get().overrides.task) if HydraConfig.initialized() else ()


def refuse_idle(method: Method) -> None:
    """Refuse options of the method that were given without having an effect.

    Raises:
        ConfigError: with the first of them and what makes it idle.
    """
    idle = method.idle_options()
    for option in given_options():
        name = option.removeprefix("method.")
        if name != option and name in idle:
            raise ConfigError(f"{option} has no effect with method.{idle[name]}")
