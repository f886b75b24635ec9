"""Run folders from any source, read without running code in them.

`rl.watch` builds networks and environments from the `config.yaml` of a folder that may come from
someone else. Hydra calls whatever `_target_` names, so here it must name a class or function of the packages below,
with plain names and numbers as arguments. `trust=true` lifts that for one call.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from harness.config.build import find_target
from harness.config.errors import ConfigError
from harness.run import checkpoint

log = logging.getLogger(__name__)
# What a folder may have built, by the beginning of the module that defines it.
BUILDABLE = (
    "fire_core.methods.", "fire_core.triggers.", "harness.config.chain.", "harness.run.tracker.",
    "rl.common.continual.", "rl.dqn.", "rl.sac.", "torch.optim.",
)  # fmt: skip
BUILT = ("model", "networks", "env", "benchmark", "method")  # groups that are built from a folder
NAME = re.compile(r"[\w.+ -]*")  # no path, no `module:name`, no `${...}`
TRUST = "trust=true builds it all the same, if you know who made this folder"


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
    if not path.is_file():
        raise ConfigError(f"run={folder} is not the folder of a run: it has no config.yaml")
    try:
        content = yaml.safe_load(path.read_text())
        program = content.get("program") if isinstance(content, dict) else None
        if program not in programs:
            raise ConfigError(f"run={folder} is a run of {program}, not of {' or '.join(programs)}")
        content = {option: _checked(value, option, trust) for option, value in content.items()}
    except (OSError, UnicodeError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    return OmegaConf.create(content)


def newest_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest whole checkpoint of a run, read without pickled code.

    Raises:
        ConfigError: there is none.
    """
    for path in checkpoint.newest_first(folder / "checkpoints"):
        try:
            state: dict[str, Any] = checkpoint.read(path)["state"]["trainer"]
        except Exception as error:  # a damaged file can fail in any way
            log.warning("%s is left out: %s", path, str(error).split("\n")[0])
            continue
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


def _checked(value: Any, place: str, trust: bool) -> Any:
    """A part of a configuration, if it names nothing else to build.

    Raises:
        ConfigError: with the place and what is refused there.
    """
    if isinstance(value, dict):
        node = {key: _checked(part, f"{place}.{key}", trust) for key, part in value.items()}
        if "_target_" in node and not trust:
            _check_target(place, node)
        return node
    if isinstance(value, list):
        return [_checked(part, f"{place}.{number}", trust) for number, part in enumerate(value)]
    if isinstance(value, str) and not trust and place.split(".")[0] in BUILT and not NAME.fullmatch(value):
        raise ConfigError(f"{place}={value!r} is refused: it is not a plain name; {TRUST}")
    return value


def _check_target(place: str, node: dict[str, Any]) -> None:
    name = node["_target_"]
    if not isinstance(name, str) or not name.startswith(BUILDABLE):
        raise ConfigError(f"{place}._target_={name!r} is refused: it is not of {', '.join(BUILDABLE)}; {TRUST}")
    module = find_target(place, node).__module__
    if not f"{module}.".startswith(BUILDABLE):  # something that one of these modules imports
        raise ConfigError(f"{place}._target_={name!r} is refused: it is of {module}; {TRUST}")
