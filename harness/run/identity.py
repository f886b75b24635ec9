"""What a run is: the part of its configuration that shapes its numbers."""

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

import yaml
from hydra.utils import get_object

from harness.config.config import resolve_device
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.config.paths import expanded
from harness.config.trigger import AT_BOUNDARIES
from harness.run import NUMERICS
from harness.run.contents import with_contents

# Where, when and for whom a run is recorded, and names of values that are there themselves: no part of what it is.
NOT_IDENTITY = (
    "paths",
    "tracker",
    "cache",
    "checkpoint",
    "progress",
    "scale",
    "tuned",
    "jobs_per_gpu",
    "only_first_phase",
)
# How it is executed: part of its identity, as rounding depends on it, but not of what the analysis compares.
EXECUTION = ("device", "threads", "deterministic", "parallel", "cuda_graph")
# Options that runs once did not have, with the value that those runs have: left out, so that these are still the same.
NEWER: dict[str, Any] = {"holdout": 0.0, "augmentation": "none", "cuda_graph": False, "skip_first_phase": False}
PLACES = ("root", "download", "cache", "spare")  # of a data set: where its files are


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that shapes a run's numbers, with the version of its program's numerics.

    Files that options name (a network's first weights, an environment's model) are in it by their contents. Those of
    `dataset=` are the task's to add, which has read them.
    """
    part = without(config, NOT_IDENTITY)
    memory = expanded(config["paths"]["cache"]) / "contents" if "paths" in config else None
    for group, options in part.items():
        if isinstance(options, dict) and group != "dataset":
            part[group] = with_contents(options, memory)
    if isinstance(part.get("dataset"), dict):
        part["dataset"] = without(part["dataset"], PLACES)
    for group, place, always in (("env", "threads", None), ("replay", "segment", 1024)):  # they change no number
        if place in (part.get(group) or {}):
            part[group] = part[group] | {place: always}
    parts = (part.get("method") or {}).get("parts")
    if parts is not None:  # a sweep of chains has the options of all of its methods in each job
        chained = part["method"]["of"].split("+")
        part["method"] = part["method"] | {"parts": {name: parts[name] for name in chained}}
    if part.get("trigger") == AT_BOUNDARIES:  # as in all runs before there were triggers
        del part["trigger"]
    for asked, default in (
        ("holdout", 0.0),
        ("augmentation", "none"),
        ("cuda_graph", False),
    ):  # as in all runs before these were options
        if part.get(asked) == default:
            del part[asked]
    part["device"] = resolve_device(str(config["device"])).type
    return {**part, "numerics": NUMERICS[str(config["program"])]}


def one_spelling(config: Any) -> Any:
    """A configuration in which 1 and 1.0 are one value: a float, where what `_target_` names takes a float.

    Rounding, method and result are the same; as text, and so in a digest, the two differ.
    """
    if isinstance(config, list):
        return [one_spelling(value) for value in config]
    if not isinstance(config, dict):
        return config
    floats = _float_arguments(config["_target_"]) if isinstance(config.get("_target_"), str) else frozenset()
    return {
        key: float(value) if key in floats and type(value) is int else one_spelling(value)
        for key, value in config.items()
    }


@functools.cache
def _float_arguments(target: str) -> frozenset[str]:
    """The arguments of a class or function that are floats, or floats or None."""
    try:
        made_by: Any = get_object(target)
        hints = get_type_hints(made_by.__init__ if inspect.isclass(made_by) else inspect.unwrap(made_by))
    except Exception:  # where it is built, it is said what is wrong with it
        return frozenset()
    floats = ({float}, {float, type(None)})
    return frozenset(name for name, hint in hints.items() if (set(get_args(hint)) or {hint}) in floats)


def own_name(group: str, node: Mapping[str, Any]) -> str:
    """The name of a group's choice; of a preset into which another environment was put, that environment's own.

    Gymnasium's `module:Name-v0` and `lab/Name-v0` are names too, which go into paths as `Name-v0` and `lab-Name-v0`.

    Args:
        group: such as `env`.
        node: its choice, with `name`, and `game` or `task` where that is what it names.
    """
    name, option = str(node["name"]), "game" if "game" in node else "task"
    own = re.sub(r"[^A-Za-z0-9._+-]+", "-", str(node.get(option)).rpartition(":")[2])
    if name == node.get(option):
        return own
    preset = CONF / group / f"{name}.yaml"
    if option not in node or not preset.is_file():
        return name
    values = yaml.safe_load(preset.read_text(encoding="utf-8"))
    usual = (values.get(group) or values).get(option)
    if usual in (None, node[option]):
        return name
    return own


def described(what: dict[str, Any]) -> dict[str, Any]:
    """An identity as `identity.json` holds it: `run`, what the run is, apart from `execution`, how it is executed."""
    execution = {key: value for key, value in what.items() if key in EXECUTION}
    return {"run": without(what, EXECUTION), "execution": execution}


def without(config: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """A configuration less some of its keys."""
    left_out = set(keys)
    return {key: value for key, value in config.items() if key not in left_out}


def digest(config: dict[str, Any], length: int = 8) -> str:
    """A short hexadecimal name for a configuration, the same on every machine."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def check_name(option: str, name: str) -> str:
    """A name that goes into a path, if it is a plain one.

    Raises:
        ConfigError: it could lead out of the folder that it is meant for.
    """
    if not name or name.startswith(".") or any(not (c.isalnum() or c in "._-+") for c in name):
        raise ConfigError(f"{option}={name!r} goes into a path: use letters, digits, '.', '_', '-' and '+' only")
    return name
