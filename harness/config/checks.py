"""Checks of a program's options, before anything is built or written.

The annotation of an option says what it accepts (`fire_core.ranges`). It is at the field of the program's dataclass of
options; for an option of a group, such as `method.rate`, it is at the argument of the class or function that the
group's `_target_` names.

A check, here and in `fire_core.ranges`, is a function of an option's name and value that returns the message that
refuses the value, or None if it is accepted.

    lr: Positive = 1e-3
    method: Group = MISSING
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fire_core.methods import Method, Net
from fire_core.ranges import Check, problem, shown
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.given import is_given, refuse_idle, refuse_idle_learning_rate
from harness.config.groups import PACKAGES, choices


def group(option: str, value: Any) -> str | None:
    """Check that a value has the form of a choice of the group `conf/<option>`: a mapping with a text under `name`.

    The files of the group are not compared.

    Returns:
        The message that refuses the value; None if it is right.
    """
    if not isinstance(value, DictConfig | dict):
        return f"{option} must be one of conf/{option} ({', '.join(choices(option))}), got {shown(value)}"
    name = value.get("name")
    return None if isinstance(name, str) else f"{option}.name must be text, got {shown(name)}"


def optional_group(option: str, value: Any) -> str | None:
    """Check that a value is the content of a file in the group `conf/<option>`, or null."""
    return None if value is None else group(option, value)


def cores(option: str, value: Any) -> str | None:
    """Check that a number of threads is at least 1 and at most the number of this machine's cores, or null."""
    most = os.cpu_count() or 1
    if value is None or 1 <= value <= most:
        return None
    return f"{option} must be in [1, {most}], the cores of this machine, got {value}"


Group = Annotated[Any, group]
OptionalGroup = Annotated[Any, optional_group]
Threads = Annotated[int | None, cores]


def check_options(config: DictConfig, other_checks: Mapping[str, Check] | None = None) -> None:
    """Check a program's options against their annotations, and its groups against what the program can build.

    A NaN is refused in every option, also in one that has no annotation, and so is a learning rate that has no effect.

    Args:
        config: a configuration composed from a dataclass of options, such as `VisionConfig`.
        other_checks: from the dotted name of an option that no dataclass declares to its check.

    Raises:
        ConfigError: an option is not accepted; the message names the first such option, its value and what is accepted.
    """
    for refusal in _refusals(config, ""):
        raise ConfigError(refusal)
    for option in _options_of_nan(OmegaConf.to_container(config, resolve=True), ""):
        raise ConfigError(f"{option} must be a finite number, got nan")
    for option, check in (other_checks or {}).items():
        if message := check(option, OmegaConf.select(config, option)):
            raise ConfigError(message)
    if config.get("program") in PACKAGES:
        _refuse_choices_of_other_programs(config)
        _refuse_names_of_other_choices(config)
        refuse_idle_learning_rate(config)


def _refusals(node: DictConfig, prefix: str) -> Iterator[str]:
    """Yield a message for each option of a dataclass that its annotation refuses, also in nested dataclasses.

    Args:
        node: the part of a configuration to check.
        prefix: its dotted name with a dot behind it, such as `paths.`, or "".
    """
    dataclass_of_node = OmegaConf.get_type(node)
    if not is_dataclass(dataclass_of_node):
        return
    annotations = get_type_hints(dataclass_of_node, include_extras=True)
    for field in fields(dataclass_of_node):
        value = None if OmegaConf.is_missing(node, field.name) else node[field.name]
        if isinstance(value, DictConfig) and is_dataclass(OmegaConf.get_type(value)):
            yield from _refusals(value, f"{prefix}{field.name}.")
        elif message := problem(prefix + field.name, value, annotations[field.name]):
            yield message


def _options_of_nan(value: Any, name: str) -> Iterator[str]:
    """Yield the dotted names of all options below a value that are NaN.

    A run with such an option would never be recognised again, as NaN is not equal to itself.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _options_of_nan(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _options_of_nan(item, f"{name}[{number}]")
    elif isinstance(value, float) and math.isnan(value):
        yield name


def _refuse_choices_of_other_programs(config: DictConfig) -> None:
    """Refuse a choice of a group that builds what only another program has.

    Raises:
        ConfigError: with the choices that this program has.
    """
    for option in map(str, config):
        name = config[option].get("name") if isinstance(config[option], DictConfig) else None
        accepted = choices(option, config.program)
        if name in choices(option) and name not in accepted:
            raise ConfigError(f"{option}={name} is not for {config.program}; accepted: {', '.join(accepted)}")


def _refuse_names_of_other_choices(config: DictConfig) -> None:
    """Refuse `dataset.name=mnist` on the command line, which would call other data so in folders, figures and tables.

    A name that no choice has is a name of the user's own. Some files of the group `model` build what `name` says.

    Raises:
        ConfigError: the message says how the other choice is made.
    """
    for option in map(str, config):
        if not is_given(f"{option}.name") or not HydraConfig.initialized():
            continue
        node, chosen = config[option], HydraConfig.get().runtime.choices.get(option)
        as_written = OmegaConf.to_container(node, resolve=False)
        assert isinstance(as_written, dict)
        has_own_environment = any(is_given(f"{option}.{part}") for part in ("game", "task"))
        is_read = any("name}" in str(value) for value in as_written.values())
        if node.name in choices(option) and node.name != chosen and not is_read and not has_own_environment:
            raise ConfigError(
                f"{option}.name={node.name} only gives {option}={chosen} another name: write {option}={node.name}"
            )


def check_optimizer(node: DictConfig) -> None:
    """Build the optimizer of `optimizer=` for a single weight, so that wrong options are refused before training.

    Raises:
        ConfigError: an option is wrong; the message is the optimizer's.
    """
    build("optimizer", node, torch.optim.Optimizer, params=[torch.nn.Parameter(torch.zeros(1))])


def check_phases(benchmark: str, steps: Sequence[int]) -> None:
    """Refuse a benchmark that trains nothing, or nothing in one of its phases.

    Args:
        benchmark: name of the benchmark.
        steps: training steps of each phase.

    Raises:
        ConfigError: the message names the first such phase, counted from 0.
    """
    if not steps:
        raise ConfigError(f"benchmark={benchmark} has no phases")
    for number, count in enumerate(steps):
        if count < 1:
            raise ConfigError(
                f"benchmark={benchmark}: phase {number} would make no training step: it needs more data, or more "
                "passes over them"
            )


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
        method: the method, as the run will use it.
        net: the networks; their weights do not matter.
        name: name of the method.
        network: the option that chose the network, such as `model=mlp`, for the message.
        without: from the name of each hook that the trainer never calls to the message for a method that has it.
        renewed_by: the option that gives each phase a new optimizer, such as `benchmark=warm_start`; "" if none does.

    Raises:
        ConfigError: the method has a hook that is never called, would do nothing, was given options without an effect,
            or cannot work on the networks.
    """
    refuse_idle({f"method.{option}": f"with method.{other}" for option, other in method.idle_options().items()})
    if method.needs_kept_optimizer and renewed_by:
        raise ConfigError(f"method={name} would do nothing to an optimizer: {renewed_by} has a new one in each phase")
    for hook, reason in (without or {}).items():
        if method.overrides(hook):
            raise ConfigError(f"method={name} {reason}")
    try:
        method.check(net)
    except ValueError as error:
        raise ConfigError(f"method={name} cannot work with {network}: {error}") from error


def check_outputs(network: str, outputs: object, shape: tuple[int, int], meaning: str, more: bool = False) -> None:
    """Check what a network returned for some examples.

    Args:
        network: how messages call the network: `model=` and its name.
        outputs: what it returned.
        shape: number of examples, and of outputs for each.
        meaning: what the outputs of an example are, for the message; may be empty.
        more: whether there may be more outputs for each example.

    Raises:
        ConfigError: it is no tensor of floats of this shape.
    """
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"{network} must return a tensor, and returns a {type(outputs).__name__}")
    right = outputs.ndim == 2 and outputs.is_floating_point() and outputs.shape[0] == shape[0]
    if not right or not (outputs.shape[1] == shape[1] or (more and outputs.shape[1] > shape[1])):
        dtype = str(outputs.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{network} must return floats of shape {shape}{meaning and ', ' + meaning}, and returns {dtype} of shape "
            f"{tuple(outputs.shape)}"
        )
