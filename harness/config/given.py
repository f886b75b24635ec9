"""Options that the user has given and that have no effect beside the others."""

import copy
from collections.abc import Mapping

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fire_core.methods import Method
from harness.config.errors import ConfigError
from harness.config.groups import methods_of


def given_options() -> tuple[str, ...]:
    """Return the dotted names of what this job's command line or sweep sets; none outside of a program.

    What files in conf/ set (experiments, tuned values) is not among them.
    """
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return tuple(override.lstrip("+~").partition("=")[0] for override in overrides)


def is_given(option: str) -> bool:
    """Return whether the user has set an option; outside of a program every value is taken for one that was set."""
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
    """Return the options of the trainer's optimizer that nothing reads where the method brings its own in all phases.

    A method may take some of them over, as Muon takes the rate and Adam's betas for the weights that are not its own.
    """
    if not method.overrides("optimizer"):
        return {}
    of_optimizer = [f"optimizer.{key}" for key in config.optimizer if key not in ("_target_", "name")]
    idle = [option for option in ("lr", *of_optimizer) if not method_reads(config, option)]
    if set(of_optimizer) <= set(idle):
        idle.append("optimizer")  # the choice of the group too
    return dict.fromkeys(idle, f"beside the optimizer that method={config.method.name} brings")


def method_reads(config: DictConfig, option: str) -> bool:
    """Return whether the method, or a method that a chain names, has an option that follows a number of the trainer's.

    The number is changed to one that nobody sets: references may go over other options, or have a default.
    """
    changed = copy.deepcopy(config)
    OmegaConf.update(changed, option, 0.123456789, force_add=True)
    return methods_of(changed) != methods_of(config)
