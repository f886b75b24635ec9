"""Optimizers as users have them, one or several, wrapped or chained; and the parameters that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def optimizers_of(optimizers: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """Return one optimizer, or several, as a list.

    Raises:
        TypeError: `optimizers` is or holds something that is no optimizer, or one whose state is kept under `id`s.
    """
    is_single = is_optimizer(optimizers) or isinstance(optimizers, nn.Module) or not isinstance(optimizers, Iterable)
    as_list = [optimizers] if is_single else list(cast(Iterable[Optimizer], optimizers))
    for optimizer in as_list:
        if not is_optimizer(optimizer):
            raise TypeError(f"expected an optimizer (with param_groups and state), got {type(optimizer).__name__}")
        keys: Iterable[Any] = optimizer.state
        if not parameters_of([optimizer]).isdisjoint(key for key in keys if type(key) is int):
            raise TypeError(
                f"{type(optimizer).__name__} keeps the state of a parameter p under id(p), not under p as torch's "
                "optimizers do: its state cannot be found"
            )
    return cast(list[Optimizer], as_list)


def is_optimizer(candidate: object) -> TypeGuard[Optimizer]:
    """Return whether an object has the attributes of an optimizer; wrappers need not inherit from `Optimizer`."""
    return hasattr(candidate, "param_groups") and hasattr(candidate, "state") and not isinstance(candidate, type)


def attributes_of(instance: object) -> dict[str, Any]:
    """Return the attributes of an object by name, including those in slots."""
    slots = [name for base in type(instance).__mro__ for name in _slot_names(vars(base).get("__slots__", ()))]
    in_slots = {name: getattr(instance, name) for name in slots if hasattr(instance, name)}
    return in_slots | getattr(instance, "__dict__", {})


def _slot_names(slots: str | Iterable[str]) -> Iterable[str]:
    """Return the names in a class's `__slots__`, which may be a single one, without Python's own."""
    names = [slots] if isinstance(slots, str) else slots
    return [name for name in names if not name.startswith("__")]


def held_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers in an optimizer's attributes, and in lists and mappings there.

    Returns:
        From `name` or, in a list or mapping, `name[key]` to the optimizer.
    """
    inner: dict[str, Optimizer] = {}
    for name, value in attributes_of(optimizer).items():
        if is_optimizer(value):
            inner[name] = value
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        for key, part in items:
            # Only an optimizer's key is written out: those of `state` are parameters, whose text takes long, and on a
            # GPU waits for the device.
            if is_optimizer(part):
                inner[f"{name}[{key}]"] = part
    return inner


def with_inner(*optimizers: Optimizer) -> Iterator[Optimizer]:
    """Yield optimizers and, after each, the optimizers that it holds, at any depth; each once."""
    visited: set[int] = set()
    queue: list[Any] = [*reversed(optimizers)]
    while queue:
        part = queue.pop()
        if id(part) not in visited and is_optimizer(part):
            visited.add(id(part))
            yield part
            queue += held_optimizers(part).values()


def parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    """Return the `id` of every parameter that optimizers hold, including those inside a wrapper."""
    return {id(p) for part in with_inner(*optimizers) for group in part.param_groups for p in group["params"]}


def optimizers_that_hold(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Return those of `optimizers` that hold at least one of `parameters`."""
    wanted = {id(p) for p in parameters}
    return [optimizer for optimizer in optimizers if parameters_of([optimizer]) & wanted]


def hold_all(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> bool:
    """Return whether optimizers hold all of these parameters; they do not after a method has put new ones in."""
    return {id(p) for p in parameters} <= parameters_of(optimizers)


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """Return what an optimizer's `closure` gives, which computes the gradients of the step; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def set_rate_factor(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to `factor` times its first one, which is kept in the group as `initial_lr`.

    A rate that is a tensor is changed in place, because a CUDA graph reads this very tensor.
    """
    for group in optimizer.param_groups:
        rate = group["lr"]
        if isinstance(rate, Tensor):
            rate.fill_(group.setdefault("initial_lr", float(rate)) * factor)
        else:
            group["lr"] = group.setdefault("initial_lr", rate) * factor
