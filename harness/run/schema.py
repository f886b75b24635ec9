"""What a checkpoint must look like: keys, types, shapes and ranges, checked when it is read."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from harness.run.identity import differing_keys


class Phased(Protocol):
    """The part of a task that is asked for here."""

    @property
    def phases(self) -> list[Any]:
        """Of the whole run."""


def outline(value: Any) -> Any:
    """A nested state with types and shapes in the place of values; equal lists of items are one line."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, dict):
        return {key: outline(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [outline(part) for part in value]
        alike = parts[:1] if all(part == parts[0] for part in parts) else parts
        return [type(value).__name__, len(parts), *alike]
    return type(value).__name__


def check_outline(place: str, found: Any, expected: Any) -> None:
    """Raise a ValueError that names the first places in which two outlines differ, the one found first."""
    if different := differing_keys(found, expected):
        raise ValueError(f"{place}: {', '.join(different[:3])}")


def check_progress(task: Phased, state: Mapping[str, Any]) -> None:
    """Raise a ValueError if the fields that every learner saves (`harness.training.learner`) cannot be right."""
    for key in ("phase", "phase_step", "step"):
        if type(state[key]) is not int or state[key] < 0:
            raise ValueError(f"{key} must be a whole number of at least 0, got {state[key]!r}")
    if state["phase"] >= len(task.phases):
        raise ValueError(f"phase must be in [0, {len(task.phases) - 1}], got {state['phase']}")
    if not isinstance(state["seconds"], int | float) or not 0 <= state["seconds"] < math.inf:
        raise ValueError(f"seconds must be a number of at least 0, got {state['seconds']!r}")
    if not isinstance(state["row"], dict):
        raise ValueError(f"row must be a table, got {type(state['row']).__name__}")


def check_weights(state: Mapping[str, Any], module: nn.Module, *keys: str) -> None:
    """Raise a ValueError if a part of a state does not hold the weights of such a module."""
    for key in keys:
        check_outline(key, outline(state[key]), outline(module.state_dict()))
