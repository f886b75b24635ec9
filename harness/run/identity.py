"""What a run is: the part of its configuration that shapes its numbers."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from harness.config.config import resolve_device
from harness.config.errors import ConfigError
from harness.config.trigger import AT_BOUNDARIES
from harness.run import NUMERICS

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
    """The part of a resolved configuration that shapes a run's numbers, with the version of its program's numerics."""
    part = without(config, NOT_IDENTITY)
    if isinstance(part.get("dataset"), dict):
        part["dataset"] = without(part["dataset"], PLACES)
    for group, place, always in (("env", "threads", None), ("replay", "segment", 1024)):  # they change no number
        if place in (part.get(group) or {}):
            part[group] = part[group] | {place: always}
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
