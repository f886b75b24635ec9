"""What `conf/` holds: the groups of each program, their choices, and how values are chosen and composed.

conf/<program>.yaml is a program's root; its defaults list names the groups that it takes. conf/<group>/<choice>.yaml is
a choice. The resolver `choose` stands at options whose value another option decides:

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
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with libyaml
# Where the targets of each program lie; those of another program do not fit.
PACKAGES = {
    "vision": ("vision.",),
    "language": ("language.",),
    "dqn": ("rl.dqn.", "rl.common."),
    "sac": ("rl.sac.", "rl.common."),
}


def choose(word: str, values: Mapping[str, Any], *otherwise: Any) -> Any:
    """The value of a word, or else the one that is given for all other words.

    Raises:
        ValueError: there is neither.
    """
    if word not in values and not otherwise:
        raise ValueError(f"{word} is unknown; accepted: {', '.join(values)}")
    return values.get(word, *otherwise)


OmegaConf.register_new_resolver("choose", choose, replace=True)


def register(name: str, schema: type) -> None:
    """Make a program's typed options known to Hydra, as `<name>_schema`."""
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)


def list_parts_of_chain(overrides: Iterable[str] = (), config_dir: Path | None = None) -> None:
    """Tell Hydra which methods' files conf/method/chain.yaml takes in, each at `method.parts.<name>`, and which winner.

    Hydra reads a defaults list before any value, so that no list in a file could follow `method.of`.

    Args:
        overrides: the command line; the methods that it chains are taken, in a sweep those of all its chains. All
            methods where it names no chain, as an experiment may.
        config_dir: a folder of one's own choices.
    """
    folders = [CONF, *([config_dir] if config_dir else [])]
    methods = {path.stem for folder in folders for path in (folder / "method").glob("*.yaml")} - {"chain"}
    chained, chain = set[str](), "fire+muon"  # as conf/method/chain.yaml has it
    for override in overrides:
        option, _, value = override.lstrip("+").partition("=")
        if option == "method.of":
            chain = value.strip("\"'")
            chained.update(re.findall(r"\w+", value))
    parts = sorted(methods & chained or methods)
    node = {"defaults": [f"{name}@parts.{name}" for name in parts]}
    ConfigStore.instance().store(group="method", name="parts_of_chain", node=node)
    for setting in (CONF / "tuned" / "searched").glob("*/"):
        winner = {"defaults": [f"/tuned/searched/{setting.name}/{chain}"]}
        ConfigStore.instance().store(
            group=f"tuned/searched/{setting.name}", name="chain", node=winner, package="_global_"
        )


list_parts_of_chain()


def methods_of(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Return the options of the method, references followed, by where they stand: `method`, or `method.parts.fire`.

    Of a chain these are the methods that `method.of` names, and no others.
    """
    places = ["method"]
    if "parts" in config.method:
        places = [f"method.parts.{name}" for name in config.method.of.split("+")]
    options: dict[str, Any] = {}
    for place in places:
        options[place] = OmegaConf.to_container(OmegaConf.select(config, place), resolve=True)
    return options


def compose(config_name: str, overrides: Iterable[str] = ()) -> DictConfig:
    """The configuration of a program, whose schema is registered, as its `main` takes it."""
    return without_hydra(compose_with_hydra(config_name, overrides))


def compose_with_hydra(config_name: str, overrides: Iterable[str], config_dir: Path | None = None) -> DictConfig:
    """The configuration as Hydra composes it, with Hydra's own; `config_dir` is a folder of one's own choices."""
    overrides = list(overrides)
    list_parts_of_chain(overrides, config_dir)
    if config_dir is not None:
        overrides.insert(0, f"hydra.searchpath=[file://{config_dir.absolute()}]")
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(config_name, overrides, return_hydra_config=True)


def without_hydra(config: DictConfig) -> DictConfig:
    """The same configuration without Hydra's part."""
    with flag_override(config, ["struct", "readonly"], False):
        del config["hydra"]
    return config


@functools.cache
def groups_of(config_name: str) -> tuple[str, ...]:
    """The groups that a program's defaults list names, in its order."""
    entries = _defaults(CONF / f"{config_name}.yaml")
    return tuple(group for group, _ in entries if group and "/" not in group and (CONF / group).is_dir())


@functools.cache
def choices(group: str, program: str = "") -> tuple[str, ...]:
    """The names of a group's files, less those that build what only another program has."""
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return tuple(name for name in names if program not in PACKAGES or _fits(group, name, program))


def _fits(group: str, name: str, program: str) -> bool:
    """Whether nothing in a file, and in the files that it names, is another program's."""
    if group == "tuned":  # settings of vision; in the others the paper has one setting a program
        return program == "vision" or name in ("auto", "none")
    others = PACKAGES.keys() - {program}
    foreign = tuple({package for other in others for package in PACKAGES[other]} - set(PACKAGES[program]))
    return name.split("_")[0] not in others and not any(target.startswith(foreign) for target in _targets(group, name))


def targets_of(group: str, name: str, config_dir: Path | None = None) -> frozenset[str]:
    """Each `_target_` of a choice, and of the choices in its defaults list.

    Args:
        group: such as method.
        name: of the choice.
        config_dir: a folder of one's own choices, which come first.
    """
    own = config_dir / group / f"{name}.yaml" if config_dir else None
    return _targets(group, name) if own is None or not own.is_file() else _targets_in(own.read_text())


def _targets_in(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"^\s*_target_: *([\w.]+)", text, re.MULTILINE))


@functools.cache
def _targets(group: str, name: str) -> frozenset[str]:
    """Each `_target_` of a choice and of the choices in its defaults list."""
    path = CONF / group / f"{name}.yaml"
    if not path.is_file():
        return frozenset()
    found = _targets_in(path.read_text())
    return frozenset(found.union(*(_targets(of or group, named) for of, named in _defaults(path))))


def _defaults(path: Path) -> list[tuple[str, str]]:
    """The entries of a file's defaults list: the group ("": the file's own) and the choice."""
    found = []
    for entry in (yaml.load(path.read_text(), LOADER) or {}).get("defaults", ()):
        for group, name in entry.items() if isinstance(entry, dict) else [("", entry)]:
            found.append((group.split()[-1].strip("/") if group else "", str(name).split("@")[0]))
    return found


def unknown_choice(group: str, name: str, program: str) -> str:
    """What to say of a choice that a group does not have; of a name that a choice takes as its own option, how."""
    commands = list[str]()
    for target in sorted({target for choice in choices(group, program) for target in _targets(group, choice)}):
        with contextlib.suppress(Exception):  # a package that is not installed, say
            command = getattr(get_object(target), "command_for", lambda name: None)(name)
            commands += [command] if command else []
    if commands:
        return f"{group}={name} is written {' or '.join(commands)}"
    return f"{group}={name} is unknown{near(name, choices(group, program))}"
