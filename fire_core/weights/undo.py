"""Undo what an act has changed in tensors, optimizers and master copies if it ends in an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fire_core.weights.masters import masters_in_use
from fire_core.weights.optimizers import attributes_of, optimizers_of, with_inner
from fire_core.weights.overlap import overlaps_itself

# `id`s of what the open blocks have recorded. An inner block leaves these to the outer one, so that nothing is copied
# twice.
_recorded: list[set[int]] = []


@contextmanager
def unchanged_on_error(tensors: Iterable[Tensor], optimizers: Optimizer | Iterable[Optimizer] = ()) -> Iterator[None]:
    """Give tensors, optimizers and master copies their old contents back if this block raises an error.

    For an optimizer, and for any that it wraps, this restores its attributes and every tensor in them, also inside
    nested lists, tuples, sets and mappings: states, groups, master copies of half-precision weights. It does not
    restore what other objects in its attributes hold, nor tensors whose elements share memory, such as expanded ones.
    Tensors, lists and mappings stay the same objects, and tensors whose `.data` was set get their old memory back. If
    a tensor cannot be restored, a note of the error says so.
    Where such blocks are nested, what the outer one has recorded is restored when the error leaves the outer one.

    A copy of each tensor is held within the block.

    Args:
        tensors: parameters and buffers. The master copies into which an integration copies changed weights
            (`masters.copied_to_masters`) are added to them.
        optimizers: may be left out if the block changes optimizers only after the last line that can fail.
    """
    parts = [*with_inner(*optimizers_of(optimizers))]
    record = _Record()
    _recorded.append(record.ids)
    try:
        record.add([*tensors, *(master.tensor for master in masters_in_use())])
        record.attributes = [(part, attributes_of(part)) for part in parts]
        record.add([attributes for _, attributes in record.attributes])
        record.add([(part.state, part.param_groups) for part in parts])  # a wrapper may only show what it wraps
        yield
    except BaseException as error:
        for failure in record.restore():
            error.add_note(failure)
        raise
    finally:
        _recorded.pop()


class _Record:
    """What tensors, containers and attributes were at one time.

    Attributes:
        ids: `id` of each tensor and container that is recorded.
        attributes: objects, each with the values of its attributes by name.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.attributes: list[tuple[object, dict[str, Any]]] = []
        self._alive: list[Any] = []  # what has an `id` above, which thereby stays its own
        self._tensors: list[tuple[Tensor, Tensor, Tensor]] = []  # each with a view of its memory and a copy
        self._containers: list[tuple[Any, list[Any]]] = []

    def add(self, values: Iterable[Any]) -> None:
        """Record tensors and containers, and what they hold, unless a block has recorded them already."""
        queue = [*values]
        while queue:
            value = queue.pop()
            is_container = isinstance(value, (MutableMapping, list, tuple, set, deque))
            is_recorded = any(id(value) in ids for ids in _recorded)
            if is_recorded or not (is_container or isinstance(value, Tensor)):
                continue
            self.ids.add(id(value))
            self._alive.append(value)
            if is_container:
                self._containers.append((value, _items(value)))
                queue += value.values() if isinstance(value, MutableMapping) else value
            elif is_traceable_wrapper_subclass(value):  # sharded, or of 8 bits: the tensors that it consists of
                queue += [getattr(value, name) for name in value.__tensor_flatten__()[0]]
            elif not overlaps_itself(value):
                self._tensors.append((value, value.detach(), value.detach().clone()))

    def restore(self) -> list[str]:
        """Restore all that has changed, and return what could not be restored, a line each."""
        failures = []
        for tensor, view, numbers in self._tensors:
            needs_inference_mode = tensor.is_inference() or torch.is_inference_mode_enabled()
            try:
                with torch.inference_mode(needs_inference_mode), torch.no_grad():
                    if not _are_one_view(tensor, view):
                        tensor.data = view
                    tensor.copy_(numbers)
            except RuntimeError as error:
                failures.append(f"a tensor of shape {tuple(tensor.shape)} is not what it was before: {error}")
        for container, items in self._containers:
            if isinstance(container, tuple) or _are_same(_items(container), items):
                continue
            container.clear()
            if isinstance(container, MutableMapping):
                container.update(zip(items[::2], items[1::2], strict=True))
            elif isinstance(container, set):
                container.update(items)
            else:
                container.extend(items)
        for owner, before in self.attributes:
            now = attributes_of(owner)
            for name in now.keys() - before.keys():
                delattr(owner, name)
            for name, value in before.items():
                if name not in now or now[name] is not value:
                    setattr(owner, name, value)
        return failures


def _items(container: Any) -> list[Any]:
    """Return what a list, tuple, set or deque holds, or the keys and values of a mapping in turn."""
    return [*chain.from_iterable(container.items())] if isinstance(container, MutableMapping) else [*container]


def _are_same(a: list[Any], b: list[Any]) -> bool:
    """Return whether two lists hold the same objects."""
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _are_one_view(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory; they are not once `.data` of one was set."""
    return (a.device, a.dtype, a.shape, a.stride()) == (
        b.device,
        b.dtype,
        b.shape,
        b.stride(),
    ) and a.data_ptr() == b.data_ptr()
