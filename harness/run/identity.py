"""The identity of a run: the part of its configuration that its numbers depend on."""

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from hydra.utils import get_object

from harness.config.config import resolve_device
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.config.paths import expanded
from harness.config.trigger import AT_BOUNDARIES
from harness.run import NUMERICS
from harness.run.contents import with_contents
from harness.run.own_environments import OPTIONS, digests_of, with_version

# Options that change no number of a run: where and how often it is recorded, and names (`scale`, `tuned`) of sets of
# values, since the identity holds these values themselves.
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
# How a run is executed. This is part of its identity, since rounding depends on it, but the analysis compares runs that
# differ in it. Older runs have the option `parallel`.
EXECUTION = ("device", "threads", "deterministic", "parallel", "cuda_graph")
# Options that older runs did not have, with the value that means the same as their absence. At this value they are left
# out of the identity, so that the older runs are still recognised.
NEWER_OPTIONS: dict[str, Any] = {"holdout": 0.0, "augmentation": "none", "cuda_graph": False}
# Options of groups that change no number of a run, with the value that stands for them in its identity.
FIXED_VALUES = (("env", "threads", None), ("replay", "segment", 1024))
ENVIRONMENT_NAMES = ("game", "task")  # options of an environment that name it
DATASET_PLACES = ("root", "download", "cache", "spare")  # options of a data set that say where its files are


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved configuration that a run's numbers depend on, and its program's `numerics` version.

    Files that options name (a network's initial weights, an environment's model) are in it with the digest of their
    contents. So is the user's own code of classes that options name, and of environments. The digests of a data set's
    files are added by the program's task, which reads these files.
    """
    run_identity = without(config, NOT_IDENTITY)
    cache_folder = expanded(config["paths"]["cache"]) / "contents" if "paths" in config else None
    for group, options in run_identity.items():
        if isinstance(options, dict) and group != "dataset":
            run_identity[group] = with_contents(options, cache_folder)
    if isinstance(run_identity.get("dataset"), dict):
        run_identity["dataset"] = without(run_identity["dataset"], DATASET_PLACES)
    for group, option, fixed_value in FIXED_VALUES:
        if option in (run_identity.get(group) or {}):
            run_identity[group] = run_identity[group] | {option: fixed_value}
    for group, option in OPTIONS:  # first, as it imports the modules that register environments and their versions
        options = run_identity.get(group)
        if isinstance(options, dict) and (digests := digests_of(options.get(option), cache_folder)):
            run_identity[group] = options | {f"{option} (content)": digests}
    environment = run_identity.get("env")
    if isinstance(environment, dict):
        names = {option: environment.get(option) for option in ENVIRONMENT_NAMES}
        with_versions = {option: with_version(name) for option, name in names.items() if isinstance(name, str)}
        run_identity["env"] = environment | with_versions
    options_of_methods = (run_identity.get("method") or {}).get("parts")
    if options_of_methods is not None:  # a sweep of chains has the options of all of its methods in each job
        chained = run_identity["method"]["of"].split("+")
        parts = {name: options_of_methods[name] for name in chained}
        run_identity["method"] = run_identity["method"] | {"parts": parts}
    if run_identity.get("trigger") == AT_BOUNDARIES:  # as in all runs before there were triggers
        del run_identity["trigger"]
    for option, value_of_older_runs in NEWER_OPTIONS.items():
        if run_identity.get(option) == value_of_older_runs:
            del run_identity[option]
    run_identity["device"] = resolve_device(str(config["device"])).type
    return {**run_identity, "numerics": NUMERICS[str(config["program"])]}


def one_spelling(config: Any) -> Any:
    """Return the configuration with each number spelled in one way, as the class or function of `_target_` takes it.

    Two spellings of a number make the same run, but their texts, and so the digests, would differ. Where a float is
    taken, also in lists and dicts, 1 becomes 1.0. Free arguments of another library (`dict[str, Any]`), of which
    nothing is known, get 1 for 1.0. -0.0 becomes 0.0.
    """
    if isinstance(config, float):
        return config + 0.0  # which is 0.0 for -0.0
    if isinstance(config, list):
        return [one_spelling(value) for value in config]
    if not isinstance(config, dict):
        return config
    hints = _annotations(config["_target_"]) if isinstance(config.get("_target_"), str) else {}
    return {key: _spelled_as(hints.get(key), value) for key, value in config.items()}


def _spelled_as(hint: Any, value: Any) -> Any:
    """Return a value with its numbers spelled as an argument of this annotation takes them; None: it has none."""
    accepted = {*get_args(hint)} if get_origin(hint) in (Union, UnionType) else {hint}
    if type(value) is int and float in accepted and int not in accepted:
        return float(value)
    for kind in accepted:
        elements = get_args(kind)
        if isinstance(value, list) and elements and get_origin(kind) in (list, tuple, Sequence):
            hints = elements if len(elements) == len(value) else elements[:1] * len(value)
            return [_spelled_as(element, item) for element, item in zip(hints, value, strict=True)]
        if isinstance(value, dict) and "_target_" not in value and get_origin(kind) in (dict, Mapping):
            if elements[1] is Any:
                return _with_whole_numbers(value)
            return {key: _spelled_as(elements[1], item) for key, item in value.items()}
    return one_spelling(value)


def _with_whole_numbers(value: Any) -> Any:
    """Return nested values with 1 in place of 1.0."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.cache
def _annotations(target: str) -> dict[str, Any]:
    """Return the annotations of the arguments of a class, with those of its bases, or of a function.

    An argument without an annotation whose default is a float counts as annotated as float.
    """
    try:
        factory: Any = get_object(target)
        if not inspect.isclass(factory):
            return _annotations_of_function(inspect.unwrap(factory))
        annotations: dict[str, Any] = {}
        for base in reversed(factory.__mro__):  # a class may pass **arguments on to its base
            if inspect.isfunction(constructor := vars(base).get("__init__")):
                annotations |= _annotations_of_function(constructor)
        return annotations
    except Exception:  # building the object, later, will report what is wrong with it
        return {}


def _annotations_of_function(function: Any) -> dict[str, Any]:
    try:
        annotations = get_type_hints(function)
    except NameError:  # a name that only type checkers import; most arguments are annotated without such names
        annotations = {
            name: ANNOTATIONS_AS_TEXT.get(hint) if isinstance(hint, str) else hint
            for name, hint in function.__annotations__.items()
        }
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is inspect.Parameter.empty and type(parameter.default) is float:
            annotations[name] = float
    return annotations


ANNOTATIONS_AS_TEXT = {"float": float, "float | None": float | None, "Optional[float]": float | None}


LONGEST_NAME = 60  # characters of the names of a sequence of environments in a run folder's name


def own_name(group: str, node: Mapping[str, Any], sequence: Sequence[str] = ()) -> str:
    """Return the name of a group's choice for the run folder's name.

    This is `name`, except where another environment was put into a preset (`env=cartpole env.task=Acrobot-v1`): then it
    is that environment's name. Gymnasium's `module:Name-v0` and `lab/Name-v0` become `Name-v0` and `lab-Name-v0`.
    Of environments that take turns it is all names, such as `Walker2d-v5+Hopper-v5`; if that is too long, the first
    name and the number of the others, such as `Walker2d-v5+8more`.

    Args:
        group: the config group, such as `env`.
        node: the group's options, with `name`, and for an environment `game` or `task`.
        sequence: of the group env, the environments that a stream has in place of the node's; empty: that of the node.
    """
    name, option = str(node["name"]), "game" if "game" in node else "task"
    if option not in node:
        return name
    full_name = with_version(str(node[option]))
    in_turn = list(dict.fromkeys(with_version(environment) for environment in sequence))
    if group == "env" and in_turn and in_turn != [full_name]:
        names = [_in_a_path(environment) for environment in in_turn]
        joined = "+".join(names)
        return joined if len(joined) <= LONGEST_NAME else f"{names[0]}+{len(names) - 1}more"
    own = _in_a_path(full_name)
    if name == node[option]:
        return own
    preset = CONF / group / f"{name}.yaml"
    if not preset.is_file():
        return name
    values = yaml.safe_load(preset.read_text(encoding="utf-8"))
    usual = (values.get(group) or values).get(option)
    if usual in (None, node[option], full_name):
        return name
    return own


def _in_a_path(environment: str) -> str:
    """Return an environment's name without its module, and with - for what cannot be part of a path."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", environment.rpartition(":")[2])


def described(identity: dict[str, Any]) -> dict[str, Any]:
    """Return an identity as `identity.json` holds it: in `execution` how the run is executed, in `run` all the rest."""
    execution = {key: value for key, value in identity.items() if key in EXECUTION}
    return {"run": without(identity, EXECUTION), "execution": execution}


def without(config: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return a configuration without some of its keys."""
    left_out = set(keys)
    return {key: value for key, value in config.items() if key not in left_out}


def digest(config: dict[str, Any], length: int = 8) -> str:
    """Return the first `length` hexadecimal digits of a configuration's SHA-256, the same on every machine."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def check_name(option: str, name: str) -> str:
    """Return a name that may be part of a path.

    Raises:
        ConfigError: the name is empty or has other characters, with which it could lead out of its folder.
    """
    if not name or name.startswith(".") or any(not (c.isalnum() or c in "._-+") for c in name):
        raise ConfigError(f"{option}={name!r} goes into a path: use letters, digits, '.', '_', '-' and '+' only")
    return name
