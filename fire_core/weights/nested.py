"""Tensors within nested lists, tuples and mappings."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def nested_tensors(value: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and mappings, in their order; a tensor alone as a list of one."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in nested_tensors(item)]
