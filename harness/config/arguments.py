"""The command line, read by Hydra's own parser and checked before Hydra composes anything.

Hydra accepts `+epoch=3`, which no program reads, and says of a value that it cannot read where its parser stopped. Here
an option that is not declared is refused with whatever sign it is given, and the message says what to write instead.
Plain values of a single run are left to Hydra: composing them beforehand would take as long as Hydra does, and only
where it refuses them does `refuse_unknown` look for the reason.
"""

import contextlib
import functools
import itertools
import math
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.direction import direction_of
from harness.config.errors import ConfigError, near
from harness.config.groups import CONF, choices, compose_with_hydra, groups_of, list_parts_of_chain, unknown_choice
from harness.config.paths import expanded

DATA = ("experiment", "benchmark", "dataset", "env", "paths", "tokenizer")  # options that say which data a run opens
HELP = "options are written option=value, and --help names them"


def read_arguments(config_name: str, words: Sequence[str] | None = None) -> Namespace:
    """Flags and options of the command line, in any order.

    Args:
        config_name: of the program.
        words: the command line; None: that of this process.

    Returns:
        What Hydra's parser finds; `parts`, the options of each of the sweeps that this one is run as (mostly one), and
        `notes`, lines about them.

    Raises:
        ConfigError: a flag is unknown, or an option cannot be read, names nothing, or has several values without -m.
    """
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; {HELP}")

    parser.error = refuse  # type: ignore[method-assign]
    arguments = parser.parse_intermixed_args(words)
    if arguments.config_dir is not None:
        folder = expanded(arguments.config_dir)
        if not arguments.config_dir or not folder.is_dir():
            raise ConfigError(
                f"--config-dir={arguments.config_dir} is no folder: it holds groups of yours as conf/ does"
            )
        sys.argv = [argument.replace(arguments.config_dir, str(folder)) for argument in sys.argv]  # without ~
        arguments.config_dir = str(folder)
    arguments.parts, arguments.notes = [arguments.overrides], list[str]()
    overrides = [parse(text) for text in arguments.overrides]
    _check_choices(overrides, config_name, arguments.config_dir)
    if not _hydra_refuses(overrides, arguments):
        _check_options(overrides, config_name, arguments)
    _check_parts(overrides)
    list_parts_of_chain(arguments.overrides, Path(arguments.config_dir) if arguments.config_dir else None)
    return arguments


def refuse_unknown(config_name: str, arguments: Namespace) -> None:
    """Refuse options that name nothing, with the nearest names; for those of `read_arguments` that it left to Hydra.

    Raises:
        ConfigError: an option is unknown.
    """
    _check_options([parse(text) for text in arguments.overrides], config_name, arguments)


def _hydra_refuses(overrides: Sequence[Override], arguments: Namespace) -> bool:
    """Whether Hydra itself refuses all that `_check_options` would: plain values, and a single run for certain."""
    plain = all(
        override.type == OverrideType.CHANGE
        and override.package is None
        and not override.is_sweep_override()
        and override.key_or_group not in ("hydra.mode", "hydra.searchpath")
        for override in overrides
    )
    return plain and not arguments.multirun and arguments.config_dir is None


def parse(text: str) -> Override:
    """One option of the command line.

    Raises:
        ConfigError: Hydra cannot read it; the message says how to quote it.
    """
    name, equals, value = text.partition("=")
    if not name.strip("+~"):
        raise ConfigError(f"{text} names no option; {HELP}")
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        quoted = f'{name}="{value}"' if '"' not in value else f"{name}='{value}'"
        with contextlib.suppress(HydraException):
            if equals and isinstance(OverridesParser.create().parse_override(quoted).value(), str):
                raise ConfigError(
                    f"{text} cannot be read: a value with other characters than letters, digits and /-_.:%@?$ stands "
                    f"in quotes within quotes, {shlex.quote(quoted)}"
                ) from error
        raise ConfigError(f"{text} cannot be read; {HELP}") from error


def values(override: Override) -> list[str]:
    """The values of an option as text: one, or those of a sweep; none of a search's range, such as interval(0, 1)."""
    value: Any = override.value()
    if isinstance(value, Glob):
        return list(value.filter(list(choices(override.key_or_group))))
    if override.is_sweep_override():
        return list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    return [value.text if isinstance(value, QuotedString) else str(value)]


def number_of_jobs(words: Sequence[str]) -> int:
    """How many jobs a sweep with these words has: the product of its options' numbers of values."""
    options = [parse(word) for word in words if not word.startswith("-") and "=" in word]
    return math.prod(len(values(option)) for option in options if option.is_sweep_override())


def _check_choices(overrides: Sequence[Override], config_name: str, config_dir: str | None) -> None:
    """Refuse names that a group does not have, here or in the user's own folder, and those of other programs."""
    for override in overrides:
        group = override.key_or_group
        if group == "method.of" and isinstance(override.value(), list):
            text = str(override.input_line).partition("=")[2]
            raise ConfigError(f"method.of={text} is written method.of={text.strip('[]').replace(',', '+')}")
        if group not in groups_of(config_name) or override.package is not None:
            continue
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise ConfigError(f"{override.input_line}: the program has one {group}, chosen by {group}=<name>")
        if isinstance(override.value(), list | dict):
            continue
        own = [path.stem for path in Path(config_dir, group).glob("*.yaml")] if config_dir else []
        for name in values(override):
            if name in own or name in choices(group, config_name) or (name == "null" and not choices(group)):
                continue
            if name in choices(group):
                accepted = ", ".join(choices(group, config_name))
                raise ConfigError(f"{group}={name} is not for {config_name}; accepted: {accepted}")
            if override.value() is None:
                accepted = ", ".join(choices(group, config_name))
                raise ConfigError(f"{group}=null chooses nothing: leave it out, or name one of {accepted}")
            raise ConfigError(unknown_choice(group, name, config_name))


def _check_options(overrides: Sequence[Override], config_name: str, arguments: Namespace) -> None:
    """Refuse options that are not declared, and several values without -m; tell Optuna what is better."""
    config_dir = Path(arguments.config_dir) if arguments.config_dir else None
    place = [str(o.input_line) for o in overrides if o.key_or_group in ("hydra.searchpath", "hydra.mode")]
    folders = [CONF, *([config_dir] if config_dir else [])]
    is_choice = [
        o.key_or_group.startswith("hydra/") or any((folder / o.key_or_group).is_dir() for folder in folders)
        for o in overrides
    ]
    combinations = _combinations([o for o, choice in zip(overrides, is_choice, strict=True) if choice])

    @functools.cache
    def composed(i: int) -> DictConfig:
        return compose_with_hydra(config_name, [*place, *combinations[i]], config_dir)

    try:
        sweeps = arguments.multirun or str(composed(0).hydra.mode).endswith("MULTIRUN")
        for override, choice in zip(overrides, is_choice, strict=True):
            if not choice and override.package is None:
                _check_declared(override, composed, len(combinations))
    except (HydraException, OmegaConfBaseException):
        return  # which Hydra will say in a moment, of the whole command line
    if sweeps and "hydra.sweeper.direction" not in [o.key_or_group for o in overrides]:
        right = direction_of(composed(0))
        arguments.overrides += [f"hydra.sweeper.direction={right}"] if right else []
    if sweeps and str(composed(0).hydra.sweeper.get("_target_")).endswith(".BasicSweeper"):
        for group, choice in zip(overrides, is_choice, strict=True):
            if choice and len(values(group)) > 1:

                def with_choice(text: str, key: str = group.key_or_group) -> DictConfig:
                    chosen = [text if other.partition("=")[0] == key else other for other in combinations[0]]
                    return composed(combinations.index(chosen))

                _split_sweep(arguments, overrides, group, with_choice)
    for override, choice in zip(overrides, is_choice, strict=True):
        if override.is_sweep_override() and not sweeps:
            name, _, value = str(override.input_line).partition("=")
            other = f"""; a list is written {name}=[{value}], and a text '{name}="{value}"'"""
            raise ConfigError(f"{name}={value} has several values: add -m to run each{'' if choice else other}")


def _split_sweep(
    arguments: Namespace, overrides: Sequence[Override], group: Override, composed: Callable[[str], DictConfig]
) -> None:
    """Let each choice of a group run with the options that it has.

    `method=base,fire method.iterations=1,5` is run as `method=base` and as `method=fire method.iterations=1,5`: base
    has no such option and trains once.

    Args:
        arguments: whose `parts` and `notes` are changed.
        overrides: the options of the command line.
        group: that of the group, with several values.
        composed: the configuration with one of the choices, `method=base`.
    """
    name = group.key_or_group
    options = [o for o in overrides if o.key_or_group.startswith(f"{name}.") and str(o.input_line)[0] not in "+~"]
    by_lack: dict[tuple[str, ...], list[str]] = {}
    for choice in values(group):
        config = composed(f"{name}={choice}")
        lacks = [str(o.input_line) for o in options if o.key_or_group not in _beside(o.key_or_group, config)]
        by_lack.setdefault(tuple(lacks), []).append(choice)
    if len(by_lack) == 1:
        return
    arguments.notes += [
        f"{', '.join(lacks)} left out for {name}={','.join(chosen)}, without such an option"
        for lacks, chosen in by_lack.items()
        if lacks
    ]
    arguments.parts = [
        [f"{name}={','.join(chosen)}" if text == group.input_line else text for text in part if text not in lacks]
        for part in arguments.parts
        for lacks, chosen in by_lack.items()
    ]


def configs_by_data(config_name: str, command_lines: Sequence[list[str]]) -> Iterator[DictConfig]:
    """The configurations of sweeps, one for each of their data sets; those of Slurm see other disks, and are left out.

    Args:
        config_name: of the program.
        command_lines: which `read_arguments` has checked; none of a single run is taken.
    """
    composed = set[tuple[str, ...]]()
    for words in command_lines:
        arguments = get_args_parser().parse_intermixed_args(words)
        overrides = [parse(text) for text in arguments.overrides]
        launcher = next((str(o.value()) for o in overrides if o.key_or_group == "hydra/launcher"), "")
        if not arguments.multirun or "slurm" in launcher:
            continue
        told = [o for o in overrides if o.key_or_group.partition(".")[0] in DATA]
        texts = [
            [f"{o.get_key_element()}={value}" for value in values(o)] if o.is_sweep_override() else [str(o.input_line)]
            for o in told
        ]
        for options in itertools.product(*(values for values in texts if values)):
            if options not in composed:
                composed.add(options)
                folder = Path(arguments.config_dir) if arguments.config_dir else None
                yield compose_with_hydra(config_name, options, folder)


def _check_parts(overrides: Sequence[Override]) -> None:
    """Refuse options of methods that no chain of the command line names, whose files are not read then."""
    chains = [chain for override in overrides if override.key_or_group == "method.of" for chain in values(override)]
    chained = {name for chain in chains for name in chain.split("+")}
    for override in overrides:
        of_part, _, option = override.key_or_group.partition("method.parts.")
        if chains and not of_part and option and (part := option.partition(".")[0]) not in chained:
            what = f"{override.key_or_group} has no effect"
            raise ConfigError(f"{what}: method.of={','.join(chains)} does not name {part}")


def _combinations(groups: Sequence[Override]) -> list[list[str]]:
    """The choices of groups on the command line: the first of each, then each other one beside the first of the others.

    So each choice is composed once, however many a sweep combines.
    """
    options = [
        [f"{o.get_key_element()}={value}" for value in values(o)] or [str(o.input_line)] if not o.is_delete() else []
        for o in groups
    ]
    options = [texts for texts in options if texts]
    first = [texts[0] for texts in options]
    return [first] + [[*first[:i], text, *first[i + 1 :]] for i, texts in enumerate(options) for text in texts[1:]]


def _check_declared(override: Override, composed: Callable[[int], DictConfig], number: int) -> None:
    """Refuse an option that the program does not have with any of the choices that are made.

    Args:
        override: the option.
        composed: the configuration with each of the choices, the first of all choices first.
        number: of these configurations.

    Raises:
        ConfigError: with the nearest names.
    """
    name, text = override.key_or_group, str(override.input_line)
    parent = name.rpartition(".")[0]
    if override.is_add() and number == 1 and name in _beside(name, composed(0)):
        raise ConfigError(f"{text}: {name} is an option already, which is written without +")
    adds = override.is_add() or override.is_force_add()
    if not any(name in _beside(name, composed(i)) or (adds and _builds(parent, composed(i))) for i in range(number)):
        beside = dict.fromkeys(option for i in range(number) for option in _beside(name, composed(i)))
        of_its_own = f": {parent} has no options of its own" if not beside else ""
        keys = [option.rpartition(".")[2] for option in beside]
        raise ConfigError(f"option {name} is unknown{of_its_own or near(name.rpartition('.')[2], keys)}")
    if override.is_delete() and not _builds(parent, composed(0)):
        raise ConfigError(f"{text}: the program needs {name}, which cannot be removed")


def _beside(name: str, config: DictConfig) -> list[str]:
    """The options of the part of a configuration in which an option stands, by their dotted names."""
    parent = name.rpartition(".")[0]
    node = _select(config, parent)
    if isinstance(node, ListConfig):
        return [name]  # an item, which Hydra looks for
    names = [str(option) for option in node] if isinstance(node, DictConfig) else []
    return [f"{parent}.{option}" if parent else option for option in names if parent or option != "hydra"]


def _builds(name: str, config: DictConfig) -> bool:
    """Whether a part of the configuration is given to a class or function, or to Hydra, which check what it holds."""
    while name:
        node = _select(config, name)
        if isinstance(node, DictConfig) and ("_target_" in node or (name.startswith("hydra.") and not _is_typed(node))):
            return True
        name = name.rpartition(".")[0]
    return False


def _is_typed(node: DictConfig) -> bool:
    return is_dataclass(OmegaConf.get_type(node))


def _select(config: DictConfig, name: str) -> object:
    with contextlib.suppress(OmegaConfBaseException):
        return OmegaConf.select(config, name) if name else config
    return None
