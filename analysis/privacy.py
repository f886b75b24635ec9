"""What exported results and reports leave out unless asked: where files lie on a machine, and whose they are.

A run folder's `env.json` holds: time, command, Python, platform, processor, number of CPUs and threads, GPUs,
versions of packages, git commit, total steps. Nothing else of the machine is recorded: no host, user or address.
"""

import re
from typing import Any

# Of a configuration: where a run is kept and mirrored. It is no part of what the run is.
PLACES = ("paths", "cache", "checkpoint", "tracker", "progress", "hydra")
PRIVATE = ("command",)  # of the environment: it has the folders that were typed
PATH = re.compile(r"(~|[A-Za-z]:)?[/\\].*")


def public_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration or identity without places; an absolute path that is left is cut to its last part."""
    return {key: _cut(value) for key, value in config.items() if key not in PLACES}


def public_environment(environment: dict[str, Any]) -> dict[str, Any]:
    """An environment without the command line."""
    return {key: _cut(value) for key, value in environment.items() if key not in PRIVATE}


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cut(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_cut(part) for part in value]
    if isinstance(value, str) and PATH.fullmatch(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return value
