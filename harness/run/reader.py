"""Run folders from any source, read without running code in them.

`rl.watch` and `language.sample` build networks and environments from the `config.yaml` of a folder that may come from
someone else. Hydra calls whatever `_target_` names, so here a target must be one that this project's own `conf/` names,
in the same group, and belong to the run's program; values must be plain, and where something is built from them no
paths and no `module:name`. `trust=true` lifts all that for one call.
"""

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from harness.config.errors import ConfigError
from harness.config.groups import CONF, PACKAGES
from harness.run.checkpoint import DIGITS

SHARED_PACKAGES = ("fire_core.methods.", "fire_core.triggers.", "harness.run.tracker.", "torch.optim.")
BUILT = ("model", "networks", "env", "benchmark", "method")  # groups that a reader may build
NAME = re.compile(r"[\w.+ -]*")
LARGEST = 2**20  # bytes of a config.yaml; normally a few thousand


class PlainLoader(yaml.SafeLoader):
    """YAML of plain values, without aliases, which let a few lines stand for millions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """As in the base class."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are refused")
        return super().compose_node(parent, index)


def read_run(folder: Path, programs: tuple[str, ...], trust: bool = False) -> tuple[DictConfig, dict[str, Any]]:
    """`read_config` and `newest_state`."""
    return read_config(folder, programs, trust), newest_state(folder)


def read_config(folder: Path, programs: tuple[str, ...], trust: bool = False) -> DictConfig:
    """The configuration of a run.

    Args:
        folder: the run's, or that of a shared first phase.
        programs: whose runs are accepted.
        trust: build whatever the configuration names.

    Raises:
        ConfigError: there is no such run, it is another program's, or its configuration is not of this project's kind.
    """
    path = folder / "config.yaml"
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise ConfigError(f"run={folder} is not the folder of a run: it has no config.yaml")
    try:
        content = yaml.load(path.read_text(), Loader=PlainLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    program = content.get("program") if isinstance(content, dict) else None
    if program not in programs:
        raise ConfigError(f"run={folder} is a run of {program}, not of {' or '.join(programs)}")
    if not trust:
        try:
            _check(content, program, ())
        except RecursionError:
            raise ConfigError(f"{path} is nested too deeply") from None
    config = OmegaConf.create(content)
    assert isinstance(config, DictConfig)
    return config


def newest_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest whole checkpoint of a run, read without pickled code.

    Raises:
        ConfigError: there is none.
    """
    for path in sorted((folder / "checkpoints").glob("step-*.pt"), reverse=True):
        if not path.is_file() or path.is_symlink():
            continue
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest[:DIGITS] != path.stem.rsplit("-", 1)[-1]:
            continue
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)["state"]["trainer"]
        except Exception as error:  # the digest detects accidents only; a crafted file can fail in any way
            raise ConfigError(f"{path} is no checkpoint of a run ({type(error).__name__})") from None
        return state
    raise ConfigError(f"run={folder} has no whole checkpoint")


@contextlib.contextmanager
def building(folder: Path) -> Iterator[None]:
    """Around what is built from a folder's configuration and state, which need not fit one another.

    Raises:
        ConfigError: something failed.
    """
    try:
        yield
    except ConfigError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise ConfigError(
            f"run={folder}: configuration and checkpoint fail ({type(error).__name__}: {first})"
        ) from None


@functools.cache
def own_targets() -> dict[str, frozenset[str]]:
    """Every `_target_` that `conf/` names, by group."""
    found: dict[str, set[str]] = {}
    for path in CONF.glob("*/**/*.yaml"):
        text = path.read_text()
        folder = path.relative_to(CONF).parts[0]
        found.setdefault(folder, set()).update(re.findall(r"^\s*_target_:\s*([\w.]+)", text, re.MULTILINE))
    found["method"] |= {target.replace(".contrib.", ".") for target in found["method"]}  # as in version 0.2
    return {group: frozenset(targets) for group, targets in found.items()}


def _check(value: Any, program: str, place: tuple[str, ...]) -> None:
    """Refuse, by name, what is not plain or is no target of this project.

    Raises:
        ConfigError: see there.
    """
    where = ".".join(place)
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str | int | float | bool):
                raise ConfigError(f"{where}: the key {key!r} is not plain; {_trust()}")
            if key == "_target_":
                _check_target(part, program, place)
            elif isinstance(key, str) and key.startswith("_"):
                raise ConfigError(f"{where}.{key} is refused: it says how something is called; {_trust()}")
            else:
                _check(part, program, (*place, str(key)))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            _check(part, program, (*place, str(i)))
    elif isinstance(value, str):
        if "${" in value:
            raise ConfigError(f"{where}={value!r} is refused: it would be resolved; {_trust()}")
        if place[0] in BUILT and not NAME.fullmatch(value):
            raise ConfigError(f"{where}={value!r} is refused: it is not a plain name; {_trust()}")
    elif not isinstance(value, int | float | bool | type(None)):
        raise ConfigError(f"{where} is a {type(value).__name__}, not plain; {_trust()}")


def _check_target(target: Any, program: str, place: tuple[str, ...]) -> None:
    group = place[0] if place else ""
    known = isinstance(target, str) and target in own_targets().get(group, ())
    if not known or not target.startswith((*PACKAGES[program], *SHARED_PACKAGES)):
        raise ConfigError(
            f"{'.'.join((*place, '_target_'))}={target!r} is refused: not named in this project's conf/; {_trust()}"
        )


def _trust() -> str:
    return "trust=true builds it all the same, if you know who made this folder"
