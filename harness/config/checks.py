"""Checks of a program's options, before anything is built or written.

What an option accepts stands where it is declared (`fire_core.ranges`): at the field of the program's typed options;
for an option of a group (`method.rate`) at the argument of the class or function that the group's `_target_` names.

    lr: Positive = 1e-3
    method: Group = MISSING
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import torch
from omegaconf import DictConfig, OmegaConf

from fire_core.methods import Method, Net
from fire_core.ranges import Check, problem, shown
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.given import refuse_idle
from harness.config.groups import PACKAGES, choices


def group(option: str, value: Any) -> str | None:
    """A check: a choice of the group of that name in `conf/`."""
    if not isinstance(value, DictConfig | dict):
        return f"{option} must be one of conf/{option} ({', '.join(choices(option))}), got {shown(value)}"
    name = value.get("name")
    return None if isinstance(name, str) else f"{option}.name must be text, got {shown(name)}"


def optional_group(option: str, value: Any) -> str | None:
    """A check: such a choice, or null."""
    return None if value is None else group(option, value)


def cores(option: str, value: Any) -> str | None:
    """A check: a number of threads that this machine can run at once; null: see the option."""
    most = os.cpu_count() or 1
    if value is None or 1 <= value <= most:
        return None
    return f"{option} must be in [1, {most}], the cores of this machine, got {value}"


Group = Annotated[Any, group]
OptionalGroup = Annotated[Any, optional_group]
Threads = Annotated[int | None, cores]


def check_options(config: DictConfig, also: Mapping[str, Check] | None = None) -> None:
    """Hold a program's options against their annotations, and its groups against what the program can build.

    Args:
        config: composed from a dataclass of options, such as `VisionConfig`.
        also: checks of options that no dataclass declares, by their dotted names.

    Raises:
        ConfigError: with the first option that is not accepted, its value and what is accepted.
    """
    for first in _problems(config, ""):
        raise ConfigError(first)
    for option, check in (also or {}).items():
        if wrong := check(option, OmegaConf.select(config, option)):
            raise ConfigError(wrong)
    if config.get("program") in PACKAGES:
        _check_programs(config)


def _problems(node: DictConfig, prefix: str) -> Iterator[str]:
    kind = OmegaConf.get_type(node)
    if not is_dataclass(kind):
        return
    hints = get_type_hints(kind, include_extras=True)
    for name in (field.name for field in fields(kind)):
        value = None if OmegaConf.is_missing(node, name) else node[name]
        if isinstance(value, DictConfig) and is_dataclass(OmegaConf.get_type(value)):
            yield from _problems(value, f"{prefix}{name}.")
        elif wrong := problem(prefix + name, value, hints[name]):
            yield wrong


def _check_programs(config: DictConfig) -> None:
    """Refuse a choice of a group that belongs to another program."""
    for option in map(str, config):
        name = config[option].get("name") if isinstance(config[option], DictConfig) else None
        if name in choices(option) and name not in (accepted := choices(option, config.program)):
            raise ConfigError(f"{option}={name} is not for {config.program}; accepted: {', '.join(accepted)}")


def check_optimizer(node: DictConfig) -> None:
    """Build an optimizer of one weight, so that wrong options show before training.

    Raises:
        ConfigError: with what the optimizer says.
    """
    build("optimizer", node, torch.optim.Optimizer, params=[torch.nn.Parameter(torch.zeros(1))])


def check_method(
    method: Method,
    net: Net,
    *,
    name: str,
    network: str,
    without: Mapping[str, str] | None = None,
    renewed_by: str = "",
) -> None:
    """Refuse a method that cannot work in a trainer or on its networks.

    Args:
        method: as the run will use it.
        net: the networks, whatever their weights.
        name: the method's.
        network: the option that names the network, `model=mlp`.
        without: hooks that the trainer has no place for, each with what to say to who wants them.
        renewed_by: the option by which each phase has a new optimizer, if it has: `benchmark=warm_start`.

    Raises:
        ConfigError: the method has such a hook, would do nothing, was given options without an effect, or cannot work
            on the networks.
    """
    refuse_idle({f"method.{option}": f"with method.{other}" for option, other in method.idle_options().items()})
    if method.acts_on_optimizer_alone and renewed_by:
        raise ConfigError(f"method={name} would do nothing to an optimizer: {renewed_by} has a new one in each phase")
    for hook, reason in (without or {}).items():
        if method.overrides(hook):
            raise ConfigError(f"method={name} {reason}")
    try:
        method.check(net)
    except ValueError as error:
        raise ConfigError(f"method={name} cannot work with {network}: {error}") from error
