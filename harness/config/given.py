"""Options that the user has given and that have no effect beside the others."""

import copy
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


def is_given(option: str) -> bool:
    """Whether the user has set an option; outside of a program every value is taken for one that was set."""
    return option in given_options() or not HydraConfig.initialized()


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
    """Options of the trainer's optimizer that nothing reads where the method brings its own in all phases.

    A method may take some of them over, as Muon takes the rate and Adam's betas for the weights that are not its own.
    """
    if not method.overrides("optimizer"):
        return {}
    options = [f"optimizer.{key}" for key in config.optimizer if key not in ("_target_", "name")]
    idle = [option for option in options if not method_reads(config, option)]
    if idle == options:
        idle = ["optimizer"]
    if not method_reads(config, "lr"):
        idle.append("lr")
    return dict.fromkeys(idle, f"beside the optimizer that method={config.method.name} brings")


def method_reads(config: DictConfig, option: str) -> bool:
    """Whether some option of the method, or of the methods that a chain names, follows a number of the trainer's."""
    changed = copy.deepcopy(config)
    OmegaConf.update(changed, option, 0.123456789, force_add=True)
    return options_of_method(changed) != options_of_method(config)


def options_of_method(config: DictConfig) -> list[object]:
    """The options of the method with all references followed; of a chain those of each method that it names."""
    parts = config.method.get("parts")  # of a chain: of all methods, named or not
    nodes = [config.method] if parts is None else [parts[name] for name in config.method.of.split("+")]
    return [OmegaConf.to_container(node, resolve=True) for node in nodes]
