"""What `conf/` holds: the groups of each program and their choices; and how a configuration is composed from it.

conf/<program>.yaml is the root file of a program, whose defaults list names its groups. conf/<group>/<choice>.yaml is a
choice of a group. The resolver `choose` is for an option whose value depends on another option:

    epochs: ${choose:${scale},{smoke:2,small:60,paper:100}}
"""

import contextlib
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, flag_override

from harness.config.errors import near

CONF = Path(__file__).parents[2] / "conf"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast but not in every PyYAML
# Beginnings of the names of each program's own modules. A choice with a `_target_` in those of another does not fit.
PACKAGES = {
    "vision": ("vision.",),
    "language": ("language.",),
    "dqn": ("rl.dqn.", "rl.common."),
    "sac": ("rl.sac.", "rl.common."),
}


def choose(word: str, values: Mapping[str, Any], *otherwise: Any) -> Any:
    """Return `values[word]`, or the last argument for any other word: the resolver `${choose:word,{word:value},value}`.

    Args:
        word: the value of the option that decides.
        values: from each word to the value for it.
        *otherwise: the value for any other word; may be left out.

    Raises:
        ValueError: the word is not in `values` and there is no `otherwise`.
    """
    if word not in values and not otherwise:
        raise ValueError(f"{word} is unknown; accepted: {', '.join(values)}")
    return values.get(word, *otherwise)


OmegaConf.register_new_resolver("choose", choose, replace=True)


def register(name: str, schema: type) -> None:
    """Make a program's dataclass of options known to Hydra, under the name `<name>_schema`."""
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)


def register_parts_of_chain(overrides: Iterable[str] = (), config_dir: Path | None = None) -> None:
    """Tell Hydra which files conf/method/chain.yaml includes: the methods of the chain, and its searched values.

    The options of a method are included at `method.parts.<name>`. Hydra reads a defaults list before any value, so a
    defaults list in a file cannot depend on `method.of`; this function stores one for the command line.

    Args:
        overrides: the options of the command line. If they name a chain, its methods are included, and in a sweep those
            of all its chains. If not, all methods are, because an experiment may name a chain.
        config_dir: the user's folder of groups.
    """
    folders = [CONF, *([config_dir] if config_dir else [])]
    methods = {path.stem for folder in folders for path in (folder / "method").glob("*.yaml")} - {"chain"}
    chain = "fire+muon"  # the default of conf/method/chain.yaml
    chained_methods = set[str]()
    for override in overrides:
        option, _, value = override.lstrip("+").partition("=")
        if option == "method.of":
            chain = value.strip("\"'")
            chained_methods.update(re.findall(r"\w+", value))
    parts = sorted(methods & chained_methods or methods)
    node = {"defaults": [f"{name}@parts.{name}" for name in parts]}
    ConfigStore.instance().store(group="method", name="parts_of_chain", node=node)
    for setting in (CONF / "tuned" / "searched").glob("*/"):
        searched_values = {"defaults": [f"/tuned/searched/{setting.name}/{chain}"]}
        ConfigStore.instance().store(
            group=f"tuned/searched/{setting.name}", name="chain", node=searched_values, package="_global_"
        )


register_parts_of_chain()


def methods_of(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Return the options of the method, or of each method that a chain names, with references such as `${lr}` followed.

    Returns:
        From the dotted name of the method's part in `config`, `method` or `method.parts.fire`, to its options.
    """
    places = ["method"]
    if "parts" in config.method:
        places = [f"method.parts.{name}" for name in config.method.of.split("+")]
    options: dict[str, Any] = {}
    for place in places:
        options[place] = OmegaConf.to_container(OmegaConf.select(config, place), resolve=True)
    return options


def compose(config_name: str, overrides: Iterable[str] = ()) -> DictConfig:
    """Return the configuration that a program's `main` would receive.

    Args:
        config_name: name of the program's root file in `conf/`, such as `vision`. The program's module must have been
            imported, because it registers the dataclass of its options.
        overrides: options as on the command line, `method=fire`.
    """
    return without_hydra(compose_with_hydra(config_name, overrides))


def compose_with_hydra(config_name: str, overrides: Iterable[str], config_dir: Path | None = None) -> DictConfig:
    """Return the configuration as `compose` does, with Hydra's own part at `hydra`.

    Args:
        config_name: name of the program's root file in `conf/`.
        overrides: options as on the command line.
        config_dir: the user's folder of groups, as `--config-dir` names it.
    """
    overrides = list(overrides)
    register_parts_of_chain(overrides, config_dir)
    if config_dir is not None:
        overrides.insert(0, searchpath(config_dir))
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(config_name, overrides, return_hydra_config=True)


def searchpath(config_dir: Path) -> str:
    """Return the option that lets Hydra find the user's folder of groups, whatever characters its path has."""
    return f"hydra.searchpath=[{quoted(f'file://{config_dir.absolute()}')}]"


def quoted(value: str) -> str:
    """Return a text in quotes, as Hydra's parser reads it: with a backslash before quotes of the same kind."""
    if '"' in value and "'" not in value and not value.endswith("\\"):
        return f"'{value}'"
    with_quotes = re.sub(r'(\\*)"', lambda match: 2 * match[1] + '\\"', value)
    doubled_at_end = re.sub(r"(\\+)$", lambda match: 2 * match[1], with_quotes)
    return f'"{doubled_at_end}"'


def without_hydra(config: DictConfig) -> DictConfig:
    """Remove Hydra's part from a configuration in place, and return it."""
    with flag_override(config, ["struct", "readonly"], False):
        del config["hydra"]
    return config


@functools.cache
def groups_of(config_name: str) -> tuple[str, ...]:
    """Return the groups in the defaults list of a program's root file, in its order, without groups within groups."""
    entries = _defaults(CONF / f"{config_name}.yaml")
    return tuple(group for group, _ in entries if group and "/" not in group and (CONF / group).is_dir())


@functools.cache
def choices(group: str, program: str = "") -> tuple[str, ...]:
    """Return the names of a group's files in conf/, sorted.

    Args:
        group: a folder of conf/, such as `method`.
        program: leave out the choices that belong to programs other than this one; "": leave out none.
    """
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return tuple(name for name in names if program not in PACKAGES or _fits(group, name, program))


def _fits(group: str, name: str, program: str) -> bool:
    """Return whether a choice, with the files in its defaults list, belongs to no program other than `program`."""
    if group == "tuned":  # these are settings of vision; the other programs have one setting each
        return program == "vision" or name in ("auto", "none")
    others = PACKAGES.keys() - {program}
    foreign = tuple({package for other in others for package in PACKAGES[other]} - set(PACKAGES[program]))
    return name.split("_")[0] not in others and not any(target.startswith(foreign) for target in _targets(group, name))


def targets_of(group: str, name: str, config_dir: Path | None = None) -> frozenset[str]:
    """Return the value of each `_target_` in the file of a choice, and in the files of conf/ in its defaults list.

    Args:
        group: name of the group, such as `method`.
        name: name of the choice.
        config_dir: the user's folder of groups. A file there is taken instead of the one in conf/, and its defaults
            list is not followed.
    """
    users_file = config_dir / group / f"{name}.yaml" if config_dir else None
    if users_file is not None and users_file.is_file():
        return _targets_in(users_file.read_text())
    return _targets(group, name)


def _targets_in(text: str) -> frozenset[str]:
    """Return the value of each `_target_` in the text of a yaml file, at any depth."""
    return frozenset(re.findall(r"^\s*_target_: *([\w.]+)", text, re.MULTILINE))


@functools.cache
def _targets(group: str, name: str) -> frozenset[str]:
    """Return the value of each `_target_` in a file of conf/ and in the files in its defaults list; cached."""
    path = CONF / group / f"{name}.yaml"
    if not path.is_file():
        return frozenset()
    targets = set(_targets_in(path.read_text()))
    for other_group, other_name in _defaults(path):
        targets |= _targets(other_group or group, other_name)
    return frozenset(targets)


def _defaults(path: Path) -> list[tuple[str, str]]:
    """Return the entries of a yaml file's defaults list, each as group and choice; group "" is the file's own group."""
    entries = []
    for entry in (yaml.load(path.read_text(), LOADER) or {}).get("defaults", ()):
        for group, name in entry.items() if isinstance(entry, dict) else [("", entry)]:
            group_name = group.split()[-1].strip("/") if group else ""  # without `optional` or `override` before it
            entries.append((group_name, str(name).split("@")[0]))
    return entries


def unknown_choice(group: str, name: str, program: str) -> str:
    """Return the message for a choice that a group does not have.

    If a target of the group has `command_for`, and knows the name, the message says how to write it:
    `model=resnet50 is written model=torchvision model.name=resnet50`.

    Args:
        group: name of the group, such as `model`.
        name: the choice on the command line.
        program: the program, whose choices are accepted.
    """
    commands = list[str]()
    for target in sorted({target for choice in choices(group, program) for target in _targets(group, choice)}):
        with contextlib.suppress(Exception):  # a package that is not installed, say
            command = getattr(get_object(target), "command_for", lambda name: None)(name)
            commands += [command] if command else []
    if commands:
        return f"{group}={name} is written {' or '.join(commands)}"
    return f"{group}={name} is unknown{near(name, choices(group, program))}"
