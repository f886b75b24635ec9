"""The options of a run from its folder, composed anew from the names of its choices."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, flag_override
from omegaconf.errors import OmegaConfBaseException

from harness.config.errors import ConfigError, one_line
from harness.config.groups import choices, compose, groups_of, targets_of
from harness.run.programs import MODULES, program_of

TOO_LARGE = 10_000_000  # bytes; a run's options take a few thousand


def recompose(folder: Path, config_dir: Path | None = None) -> DictConfig:
    """The options of a run.

    Each group's choice is the file of this installation that builds what the run's file names; the run's values are put
    over it one by one. So nothing is imported that no file of `conf/` (or of `config_dir`) names.

    Args:
        folder: of the run.
        config_dir: a folder of one's own choices.

    Raises:
        ConfigError: there is no such file, or it holds what no run writes, or an option that is unknown here.
    """
    file = folder / "config.yaml"
    values = read_values(file)
    name = values.get("program")
    if name not in MODULES:
        raise ConfigError(f"{file} is of no program of this project: program={name!r}")
    program_of(name)  # makes the types of its options known to Hydra
    chosen = []
    for group in groups_of(name):
        node = values.get(group)
        if isinstance(node, dict) and "_target_" in node:
            chosen.append(f"{group}={choice_of(group, node, name, config_dir, file)}")
    if config_dir is not None:
        chosen.append(f"hydra.searchpath=[file://{config_dir.resolve()}]")
    config = compose(name, [*chosen, *(["tuned=none"] if "tuned" in values else [])])
    with flag_override(config, "struct", True):
        put(config, values, file)
    return config


def read_values(file: Path) -> dict[str, Any]:
    """The plain values of a run's config.yaml.

    Raises:
        ConfigError: there is no such file, or it holds what no run writes.
    """
    try:
        if file.stat().st_size > TOO_LARGE:
            raise ConfigError(f"{file} is no run's file: it has {file.stat().st_size:,} bytes")
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file.parent} is no run folder: it has no {file.name}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is damaged: {' '.join(one_line(error).split())}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{file} is no run's file: it holds no options")
    for option, value in leaves(values):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{file} is no run's file: {option} is a reference, and a run writes values")
    return values


def choice_of(group: str, node: Any, program: str, config_dir: Path | None, file: Path) -> str:
    """The choice of a group that builds what a run's file names: the one of that name, else any with that target.

    Raises:
        ConfigError: no file builds it.
    """
    target, name = node["_target_"], node.get("name")
    own = sorted(path.stem for path in (config_dir / group).glob("*.yaml")) if config_dir else []
    named = [choice for choice in (*own, *choices(group, program)) if target in targets_of(group, choice, config_dir)]
    if not named:
        where = "conf" if config_dir is None else f"conf or {config_dir}"
        hint = "" if config_dir else "; if the run was made with --config-dir, give it here too"
        raise ConfigError(f"{file}: no file of {where}/{group} builds {group}._target_={target}{hint}")
    return name if name in named else named[0]


def put(config: DictConfig, values: Mapping[str, Any], file: Path, parent: str = "") -> None:
    """Put a run's values over a composition.

    A mapping of options is followed; what is a value itself (a layout, a list) is put in as a whole.

    Raises:
        ConfigError: an option is unknown here, or something else would be built.
    """
    for key, value in values.items():
        option = f"{parent}.{key}" if parent else key
        if key not in config:
            raise ConfigError(f"{file} is of another version of this project: option {option} is unknown here")
        inner = options_at(config, key)
        if key.startswith("_"):
            if config[key] != value:
                raise ConfigError(f"{file}: {option}={value} is not what this installation has there, {config[key]}")
        elif isinstance(value, dict) and inner:
            put(inner, value, file, option)
        else:
            if any(part.startswith("_") for path, _ in leaves({key: value}) for part in path.split(".")):
                raise ConfigError(f"{file} is no run's file: {option} names something to build")
            try:
                config[key] = value
            except (OmegaConfBaseException, ValueError) as error:
                raise ConfigError(f"{file}: {option}: {one_line(error)}") from None


def options_at(config: DictConfig, key: str) -> DictConfig | None:
    """The options below a key; None where a value stands, or a reference."""
    try:
        inner = config[key]
    except OmegaConfBaseException:  # a reference that only the run's own values resolve
        return None
    return inner if isinstance(inner, DictConfig) else None


def leaves(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings and lists by their dotted names."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    if not isinstance(values, dict | list):
        yield name, values
    for key, value in pairs:
        yield from leaves(value, f"{name}.{key}" if name else str(key))
