"""What a run's identity holds of gymnasium's environments: their versions, and the user's own code they are made by."""

import contextlib
import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from harness.run.contents import digest_of
from harness.run.own_code import is_own

OPTIONS = (("env", "game"), ("env", "task"), ("benchmark", "sequence"))  # (group, option) that name environments


def digests_of(names: Any, cache_folder: Path | None = None) -> dict[str, str]:
    """Return the digests of the user's own code that makes environments, by the names of its modules.

    Args:
        names: what an option of `OPTIONS` has for a value: the name of an environment, several, or nothing.
        cache_folder: see `harness.run.contents.with_contents`.
    """
    sources = {module: path for name in _listed(names) for module, path in environment_sources(name).items()}
    return {module: digest_of(path, cache_folder) for module, path in sources.items()}


def environment_sources(name: str) -> dict[str, Path]:
    """Return the source file of each module with code of the user's own that makes an environment of gymnasium.

    These modules are the one that registers it (`mine` of `mine:Name-v0`), and those of its class and of the wrappers
    that it is registered with. Modules that these import are not looked at.

    Args:
        name: as in `env.game` or `env.task`. The module in it is imported.

    Returns:
        The files by the names of their modules; none for a name that gymnasium does not know, or whose module cannot be
        imported, which making the environment reports.
    """
    modules = {name.rpartition(":")[0]}
    with contextlib.suppress(Exception), warnings.catch_warnings():
        import gymnasium

        warnings.simplefilter("ignore")  # of a newer version, of which making the environment warns
        for module in modules - {""}:
            importlib.import_module(module)
        spec = gymnasium.spec(with_version(name).rpartition(":")[2])  # which takes no module
        for entry_point in (spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)):
            if isinstance(entry_point, str):
                modules.add(entry_point.partition(":")[0])
            elif entry_point is not None:  # a class or a function, perhaps with some of its arguments
                modules.add(inspect.unwrap(getattr(entry_point, "func", entry_point)).__module__)
    sources = {module: _source_of_module(module) for module in sorted(modules - {""})}
    return {module: path for module, path in sources.items() if path is not None and is_own(path)}


def _source_of_module(name: str) -> Path | None:
    """Return the source file of a module, which is not imported for it; None if there is none."""
    with contextlib.suppress(Exception):  # whatever the packages around it may raise
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.has_location and str(spec.origin).endswith(".py"):
            return Path(str(spec.origin)).resolve()
    return None


def recorded_sources(described: Any, modules: Set[str]) -> Iterator[tuple[Path, str]]:
    """Yield the files with code of the user's own that a run's environments are made by, with the digests of then.

    Args:
        described: what the run's `identity.json` holds, which may come from a stranger.
        modules: those that may be imported; environments of others are passed over.
    """
    identity = described.get("run") if isinstance(described, dict) else None
    for group, option in OPTIONS:
        options = identity.get(group) if isinstance(identity, dict) else None
        digests = options.get(f"{option} (content)") if isinstance(options, dict) else None
        if isinstance(options, dict) and isinstance(digests, dict):
            for name in _listed(options.get(option)):
                sources = environment_sources(name) if name.rpartition(":")[0] in {"", *modules} else {}
                yield from ((path, str(digests[module])) for module, path in sources.items() if module in digests)


def _listed(names: Any) -> list[str]:
    return [name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str)]


def with_version(name: str) -> str:
    """Return an environment's name with its version: gymnasium takes the newest of `Hopper`, which is `Hopper-v5` now.

    Names that are not gymnasium's are returned as they are.
    """
    from gymnasium.envs.registration import find_highest_version, parse_env_id, registry

    identifier = name.rpartition(":")[2]  # behind the module that registers it
    try:
        namespace, short_name, version = parse_env_id(identifier)
    except Exception:  # gymnasium's own class of error; the name may be of another suite
        return name
    if version is not None or identifier in registry:
        return name
    newest = find_highest_version(namespace, short_name)
    return name if newest is None else f"{name}-v{newest}"
