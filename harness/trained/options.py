"""Recompose the options of a run from its config.yaml and the config files of this installation."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from harness.config.build import find_target
from harness.config.errors import ConfigError, first_line
from harness.config.groups import choices, compose_with_hydra, groups_of, targets_of, without_hydra
from harness.program.by_name import MODULES, program_of
from harness.run.files import content_of

# Of a config.yaml; a run's options are a few thousand bytes.
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 10_000_000, 1_000_000, 30


def recompose(folder: Path, config_dir: Path | None = None, modules: Collection[str] = ()) -> DictConfig:
    """Return the options of a run.

    For each config group, the file of this installation that builds the same `_target_` is composed, and the run's
    values are put over it one by one. So only classes are imported that a file of `conf/` (or of `config_dir`) names.
    The run may have more or fewer arguments of such a class than its file: tuned values add some, and so do `+` and `~`
    on a command line.

    Args:
        folder: the run's folder.
        config_dir: the folder of `--config-dir`, if the run was trained with that option.
        modules: names of modules that may be imported for environments (`mine` of `env.task=mine:Name-v0`).

    Raises:
        ConfigError: config.yaml is missing or damaged, holds something that no run writes, an unknown option, or an
            environment of a module that is not among `modules`; or `config_dir` is no folder.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"config_dir={config_dir} is no folder")
    file = folder / "config.yaml"
    values = read_values(file)
    name = values.get("program")
    if not isinstance(name, str) or name not in MODULES:
        raise ConfigError(f"{file} is of no program of this project: program={name!r}")
    program_of(name)  # makes the types of its options known to Hydra
    group_choices = []
    for group in groups_of(name):
        node = values.get(group)
        if isinstance(node, dict) and targets_below(node):
            group_choices.append(f"{group}={choice_of(group, node, name, config_dir, file)}")
    overrides = [*group_choices, *(["tuned=none"] if "tuned" in values else [])]
    config = without_hydra(compose_with_hydra(name, overrides, config_dir))
    composed = {value for _, value in environments(config)}
    with flag_override(config, "struct", True):
        put(config, values, file)
    for option, value in environments(config):
        module = value.partition(":")[0]
        if ":" in value and value not in composed and module not in modules:
            raise ConfigError(
                f"{file}: {option}={value} is code of the module {module}, which is imported only if you name it: "
                f"load(folder, modules=[{module!r}]), in a command modules={module}"
            )
    return config


def environments(config: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield (option, name) for each environment that options name; gymnasium imports what stands before a colon."""
    for option in ("env.task", "env.game", "benchmark.sequence"):
        value = OmegaConf.select(config, option, throw_on_missing=False)
        for name in value if isinstance(value, ListConfig) else [value]:
            if isinstance(name, str):
                yield option, name


def read_values(file: Path) -> dict[str, Any]:
    """Return the values of a run's config.yaml.

    Raises:
        ConfigError: the file is missing or damaged, or holds something that no run writes, such as a reference
            `${...}`.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{file} is no run's file: it has {file.stat().st_size:,} bytes")
        content = content_of(file) or b""
    except FileNotFoundError:
        raise ConfigError(f"{file.parent} is no run folder: it has no {file.name}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None
    try:
        text = content.decode()
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("it has aliases, which no run writes: a short text could stand for endless values")
        values = yaml.safe_load(text)
        check_plain(values, iter(range(MAX_VALUES)))
    except Exception as error:  # YAML's constructors of dates, numbers and sets fail in any way
        raise ConfigError(f"{file} is damaged: {' '.join(first_line(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} is no run's file: it holds no options")
    for option, value in leaves(values):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{file} is no run's file: {option} is a reference, and a run writes values")
    return values


def check_plain(value: Any, remaining: Iterator[int], depth: int = 0) -> None:
    """Check that a value consists of mappings with text keys, lists, texts, numbers, switches and null alone.

    YAML can also give tuples, sets, dates and bytes, within which a `_target_` would not be seen.

    Args:
        value: what a YAML file holds.
        remaining: gives a number for each value that may still come.
        depth: how many mappings and lists the value is in.

    Raises:
        ValueError: it holds something else, or too many values.
    """
    if next(remaining, None) is None or depth > MAX_DEPTH:
        raise ValueError("it holds too many values, or too many within each other")
    if type(value) is dict:
        if not all(type(key) is str and key.isprintable() for key in value):
            raise ValueError("a name of an option is no text")
        for inner in value.values():
            check_plain(inner, remaining, depth + 1)
    elif type(value) is list:
        for inner in value:
            check_plain(inner, remaining, depth + 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise ValueError(f"a {type(value).__name__} is no value of an option")
    elif type(value) is int and abs(value) >= 2**64:
        raise ValueError("a number has more than 64 bits")
    elif value == "???" or (type(value) is str and "\x1b" in value):
        raise ValueError(f"{value!r} is no value of an option")


def choice_of(group: str, node: Any, program: str, config_dir: Path | None, file: Path) -> str:
    """Return the choice of a config group that builds a run's `_target_`, preferably the one of the run's `name`.

    A choice that has no target of its own, such as a pair of data sets, has to build all those below it.

    Args:
        group: the config group, such as `model`.
        node: the run's options of this group, with `_target_` in it or below it.
        program: name of the program.
        config_dir: a folder with further choices, or None.
        file: the run's config.yaml, for the message.

    Raises:
        ConfigError: no choice builds this target.
    """
    name = node.get("name")
    targets = {str(node["_target_"])} if "_target_" in node else targets_below(node)
    of_config_dir = sorted(path.stem for path in (config_dir / group).glob("*.yaml")) if config_dir else []
    all_choices = (*of_config_dir, *choices(group, program))
    matching = [choice for choice in all_choices if targets <= targets_of(group, choice, config_dir)]
    if not matching:
        where = "conf" if config_dir is None else f"conf or {config_dir}"
        by = "load(folder, config_dir='mine'), in a command with config_dir=mine"
        shown = ", ".join(sorted(targets))
        hint = "" if config_dir else f"; one made with --config-dir=mine is loaded by {by}"
        raise ConfigError(f"{file}: no file of {where}/{group} builds {group}._target_={shown}{hint}")
    return name if name in matching else matching[0]


def put(config: DictConfig, values: Mapping[str, Any], file: Path, parent: str = "", in_target: bool = False) -> None:
    """Overwrite the values of a composed config, in place, with those of a run.

    A mapping of options is followed key by key. A mapping or list that is itself a value, such as a layout, replaces
    the composed one completely. Of the arguments of a `_target_`, those that only the run has are added, and those that
    it lacks are removed, if the target can be called without them.

    Args:
        config: the composed config.
        values: the run's values.
        file: the run's config.yaml, for messages.
        parent: dotted name of the options that `values` belongs to.
        in_target: whether `config` is a mapping of nodes that a `_target_` takes, such as the methods of a chain.

    Raises:
        ConfigError: an option is unknown here, or a value would change which class is built.
    """
    for key in [str(key) for key in config if key not in values]:
        parameter = parameter_of(config, key, parent)
        if in_target or (parameter is not None and not is_required(parameter)):
            with flag_override(config, "struct", False):
                del config[key]
    for key, value in values.items():
        option = f"{parent}.{key}" if parent else key
        is_new = key not in config
        if is_new and parameter_of(config, key, parent) is None:
            raise ConfigError(f"{file} is of another version of this project: option {option} is unknown here")
        inner = None if is_new else options_at(config, key)
        if key.startswith("_"):
            if config[key] != value:
                raise ConfigError(f"{file}: {option}={value} is not what this installation has there, {config[key]}")
        elif isinstance(value, dict) and inner and ("_target_" not in config or targets_below(inner)):
            put(inner, value, file, option, in_target="_target_" in config and "_target_" not in inner)
        else:
            if any(part.startswith("_") for path, _ in leaves({key: value}) for part in path.split(".")):
                raise ConfigError(f"{file} is no run's file: {option} names something to build")
            try:
                with flag_override(config, "struct", not is_new):
                    config[key] = value
            except (OmegaConfBaseException, ValueError) as error:
                raise ConfigError(f"{file}: {option}: {first_line(error)}") from None


def parameter_of(config: DictConfig, key: str, option: str) -> inspect.Parameter | None:
    """Return the parameter of a node's `_target_` that takes an argument; None if there is none.

    Args:
        config: the node.
        key: name of the argument.
        option: dotted name of the node, for the message.

    Raises:
        ConfigError: the target cannot be imported.
    """
    if "_target_" not in config or key.startswith("_") or key == "name":  # `build` does not pass the name on
        return None
    parameters = inspect.signature(find_target(option, config)).parameters
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if key in parameters and parameters[key].kind in by_name:
        return parameters[key]
    return next(
        (parameter for parameter in parameters.values() if parameter.kind == inspect.Parameter.VAR_KEYWORD), None
    )


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a function cannot be called without an argument for this parameter."""
    return parameter.default is inspect.Parameter.empty and parameter.kind != inspect.Parameter.VAR_KEYWORD


def targets_below(node: Mapping[str, Any]) -> set[str]:
    """Return the value of each `_target_` in nested options."""
    return {str(value) for path, value in leaves(node) if path.rpartition(".")[2] == "_target_"}


def options_at(config: DictConfig, key: str) -> DictConfig | None:
    """Return the options below a key; None if the key holds a plain value or an unresolved reference."""
    try:
        inner = config[key]
    except OmegaConfBaseException:  # a reference that only the run's own values resolve
        return None
    return inner if isinstance(inner, DictConfig) else None


def leaves(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for each plain value in nested mappings and lists."""
    values = OmegaConf.to_container(values) if isinstance(values, DictConfig) else values
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    if not isinstance(values, dict | list):
        yield name, values
    for key, value in pairs:
        yield from leaves(value, f"{name}.{key}" if name else str(key))
