"""Options that the user has given and that have no effect beside the others."""

import re
from collections.abc import Iterable, Mapping

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

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


def refuse_idle(idle: Mapping[str, str]) -> None:
    """Refuse options that were given without having an effect.

    Args:
        idle: names of options, or of groups, and what makes each of them idle.

    Raises:
        ConfigError: with the first of them.
    """
    for option in given_options():
        for name, why in idle.items():
            if option == name or option.startswith(f"{name}."):
                raise ConfigError(f"{option} has no effect {why}")


def idle_beside(method: Method, config: DictConfig) -> dict[str, str]:
    """Options of the trainer's optimizer that nothing reads where the method brings its own in all phases."""
    if not method.overrides("optimizer"):
        return {}
    parts = config.method.get("parts")  # of a chain: of all methods, named or not
    nodes = [config.method] if parts is None else [parts[name] for name in config.method.of.split("+")]
    reads_rate = any("${lr}" in OmegaConf.to_yaml(node) for node in nodes)
    options = ["optimizer"] if reads_rate else ["optimizer", "lr"]
    return dict.fromkeys(options, f"beside the optimizer that method={config.method.name} brings")
