"""Options that the user has set although, with the other options, they have no effect."""

import copy
from collections.abc import Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fire_core.methods import Method
from fire_core.triggers import Trigger
from harness.config.errors import ConfigError
from harness.config.groups import methods_of


def given_overrides() -> list[str]:
    """Return what this job's command line or sweep sets, as it was given: references `${...}` are not followed."""
    if not HydraConfig.initialized():
        return []
    overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(override) for override in overrides]


def given_options() -> tuple[str, ...]:
    """Return the dotted names of the options that this job's command line or sweep sets; none outside of a program.

    Options that files in conf/ set (experiments, tuned values) are not among them.
    """
    return tuple(override.lstrip("+~").partition("=")[0] for override in given_overrides())


def is_given(option: str) -> bool:
    """Return whether the user has set the option of a dotted name; outside of a program every option counts as set."""
    return option in given_options() or not HydraConfig.initialized()


def refuse_idle(idle: Mapping[str, str]) -> None:
    """Refuse options that the user has set although they have no effect.

    Args:
        idle: from the name of an option without effect, or of a group of them, to the reason, such as `with model=cnn`.

    Raises:
        ConfigError: the user has set one of these options; the message names the first.
    """
    for option in given_options():
        for name, reason in idle.items():
            if option == name or option.startswith(f"{name}."):
                raise ConfigError(f"{option} has no effect {reason}")


def idle_beside(method: Method, config: DictConfig) -> dict[str, str]:
    """Return the options of the trainer's optimizer that have no effect because the method brings its own optimizer.

    A method may use some of them: Muon takes the learning rate and Adam's betas for the weights that Adam updates.

    Returns:
        From the name of each such option to the reason, for `refuse_idle`; empty if the trainer's optimizer is used.
    """
    if not method.overrides("optimizer"):
        return {}
    of_optimizer = [f"optimizer.{key}" for key in config.optimizer if key not in ("_target_", "name")]
    idle = [option for option in ("lr", *of_optimizer) if not method_reads(config, option)]
    if set(of_optimizer) <= set(idle):
        idle.append("optimizer")  # then it does not matter which file of the group is chosen either
    return dict.fromkeys(idle, f"beside the optimizer that method={config.method.name} brings")


def idle_layout(config: DictConfig, method: Method, trigger: Trigger | None) -> dict[str, str]:
    """Return `model.layout` with the reason, for `refuse_idle`, if neither the method nor the trigger reads it.

    It is empty in a sweep: there a method that reads no layout is often the baseline of one that does, and the analysis
    compares runs with the same network.
    """
    in_sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    trigger_reads = trigger is not None and getattr(trigger, "layout", "") is None
    if in_sweep or trigger_reads or method.reads_layout or method_reads(config, "model.layout"):
        return {}
    return {"model.layout": f"with method={config.method.name}, which acts by no layout of the network"}


def refuse_idle_learning_rate(config: DictConfig) -> None:
    """Refuse `lr=` if neither the optimizer nor the method reads it; see `lr_is_idle`.

    Raises:
        ConfigError: the user has set it.
    """
    if "lr" in given_options() and lr_is_idle(config):
        remedy = "give optimizer.lr= alone" if "lr" in config.optimizer else "write lr: ${lr} in its file"
        raise ConfigError(f"lr has no effect, as {own_rate(config)} does not refer to it: {remedy}")


def lr_is_idle(config: DictConfig) -> bool:
    """Return whether no option of the optimizer refers to `lr`, and none of the method either.

    The user has given `optimizer.lr=`, or a file of an optimizer or an experiment has a rate of its own, or none.
    """
    if not config.get("optimizer") or method_reads(config, "lr"):
        return False
    changed = _with_another(config, "lr").optimizer
    return bool(OmegaConf.to_container(changed, resolve=True) == OmegaConf.to_container(config.optimizer, resolve=True))


def own_rate(config: DictConfig) -> str:
    """Return what an optimizer that does not refer to `lr` has in its place, for messages."""
    optimizer = config.optimizer
    return f"optimizer.lr={optimizer.lr}" if "lr" in optimizer else f"the optimizer {optimizer.get('_target_', '')}"


def method_reads(config: DictConfig, option: str) -> bool:
    """Return whether the method, or a method of a chain, has an option that refers to a number of the trainer.

    The number is changed to see whether an option of the method changes with it. Looking for `${lr}` in the yaml would
    miss references that go over other options or have a default.

    Args:
        config: the configuration of a run.
        option: the dotted name of a number, such as `lr`.
    """
    return methods_of(_with_another(config, option)) != methods_of(config)


def _with_another(config: DictConfig, option: str) -> DictConfig:
    """Return a copy of a configuration in which a number has a value that no option has by chance."""
    changed = copy.deepcopy(config)
    OmegaConf.update(changed, option, 0.123456789, force_add=True)
    return changed
