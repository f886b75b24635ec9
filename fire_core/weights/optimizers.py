"""Optimizers as they are given to us: one or several, wrapped or chained, and the parameters that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard, cast

from torch import Tensor, nn
from torch.optim import Optimizer


def optimizers_of(optimizers: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """One optimizer or several as a list.

    Raises:
        TypeError: something that is no optimizer.
    """
    is_single = is_optimizer(optimizers) or isinstance(optimizers, nn.Module) or not isinstance(optimizers, Iterable)
    several = [optimizers] if is_single else list(cast(Iterable[Optimizer], optimizers))
    for optimizer in several:
        if not is_optimizer(optimizer):
            raise TypeError(f"expected an optimizer (with param_groups and state), got {type(optimizer).__name__}")
    return cast(list[Optimizer], several)


def is_optimizer(thing: object) -> TypeGuard[Optimizer]:
    """By what it has: wrappers need not inherit from `Optimizer`. A class is none."""
    return hasattr(thing, "param_groups") and hasattr(thing, "state") and not isinstance(thing, type)


def attributes_of(thing: object) -> dict[str, Any]:
    """The attributes of an object by name, those in slots too."""
    slots = [name for base in type(thing).__mro__ for name in _names(vars(base).get("__slots__", ()))]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(thing, "__dict__", {})


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    names = [slots] if isinstance(slots, str) else slots
    return [name for name in names if not name.startswith("__")]


def held_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The optimizers that one holds as attributes, by name; those in lists and mappings by name and place."""
    inner: dict[str, Optimizer] = {}
    for name, value in attributes_of(optimizer).items():
        places = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        for place, part in [("", value), *((f"[{key}]", part) for key, part in places)]:
            if is_optimizer(part):
                inner[f"{name}{place}"] = part
    return inner


def with_inner(*optimizers: Optimizer) -> Iterator[Optimizer]:
    """Optimizers and those that they hold, by whatever names: a wrapper's one, a chain's several; each once."""
    visited: set[int] = set()
    queue: list[Any] = [*reversed(optimizers)]
    while queue:
        part = queue.pop()
        if id(part) not in visited and is_optimizer(part):
            visited.add(id(part))
            yield part
            queue += held_optimizers(part).values()


def parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    """`id` of every parameter that optimizers hold, also those inside a wrapper."""
    return {id(p) for part in with_inner(*optimizers) for group in part.param_groups for p in group["params"]}


def holding(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Those of some optimizers that hold at least one of these parameters."""
    wanted = {id(p) for p in parameters}
    return [optimizer for optimizer in optimizers if parameters_of([optimizer]) & wanted]


def hold_all(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> bool:
    """Whether the optimizers hold every one of these parameters; a method may have put in new ones."""
    return {id(p) for p in parameters} <= parameters_of(optimizers)


def set_rate_factor(optimizer: Optimizer, factor: float) -> None:
    """Every group's learning rate to `factor` times the one that it began with (kept as `initial_lr`).

    A rate that is a tensor, as a CUDA graph reads it, stays this tensor.
    """
    for group in optimizer.param_groups:
        rate = group["lr"]
        if isinstance(rate, Tensor):
            rate.fill_(group.setdefault("initial_lr", float(rate)) * factor)
        else:
            group["lr"] = group.setdefault("initial_lr", rate) * factor
