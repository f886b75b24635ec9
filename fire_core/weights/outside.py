"""State outside of a module that its forward pass may change, put back after a pass that only looks.

A pass runs on a copy, which shares nothing that the module itself holds. What is left are globals, counters and caches
of a class, variables that a closure shares, defaults of arguments and `functools` caches. Code names what it uses of
them: the functions that `forward` reaches are followed, and what they name is remembered.
"""

from __future__ import annotations

import ast
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.weights.code import is_torchs

MOST_NUMBERS = 2**20  # of a tensor or an array that is copied so that it can be put back
MOST_FUNCTIONS = 1000  # that are followed, if code reaches deep into a library
MOST_NESTED = 6  # objects within each other
MOST_PARTS = 10_000  # of a list or a mapping that are looked into; the list itself is put back whatever its length
_FUNCTIONS = (FunctionType, MethodType, partial, property, staticmethod, classmethod)
_UNCHANGING = (int, float, complex, str, bytes, type(None))


@contextmanager
def kept_outside(module: nn.Module) -> Iterator[None]:
    """Put back at the end what a forward pass of `module`, or of a copy of it, changes outside of it.

    Not put back: files, devices, other processes, the insides of compiled extensions, objects with slots, tensors and
    arrays of more than a million numbers, and what code reaches by a name that it computes (`getattr(x, name)`).
    """
    memory = _Memory()
    for part in module.modules():
        with suppress(Exception):  # what cannot be remembered is not put back
            memory.classes(type(part))
            memory.follow(getattr(type(part), "forward", None), type(part))
            for value in vars(part).values():
                if isinstance(value, (type, *_FUNCTIONS)):  # no copy is made of these with the module
                    memory.value(value, set())
    try:
        yield
    finally:
        with torch.no_grad():
            for restore in reversed(memory.restores):
                with suppress(Exception):  # an object that refuses to be changed back
                    restore()


class _Memory:
    """What is remembered, as functions that put it back; each acts only if something was changed."""

    def __init__(self) -> None:
        self.restores: list[Callable[[], Any]] = []
        self._seen: dict[int, object] = {}  # held, so that no id stands for two objects
        self._followed: set[tuple[Any, ...]] = set()
        self._waiting: deque[tuple[Any, type | None]] = deque()

    def follow(self, function: Any, owner: type | None) -> None:
        """Remember what a function names, and what the functions that it calls name.

        Args:
            function: of any kind; torch's own are passed over.
            owner: the class whose methods it calls by name.
        """
        self._waiting.append((function, owner))
        if len(self._waiting) == 1:  # else a call further out does it
            while self._waiting:
                with suppress(Exception):  # an object that answers to every name, say, and means nothing by it
                    self._look_into(*self._waiting[0])
                self._waiting.popleft()

    def _look_into(self, function: Any, owner: type | None) -> None:
        if hasattr(function, "cache_clear"):
            self._cache(function)
        function = _python_function(function)
        key = (id(function), owner)
        if function is None or _is_librarys(function) or key in self._followed or len(self._followed) > MOST_FUNCTIONS:
            return
        self._followed.add(key)
        names = _names(function.__code__)
        self._methods(owner, names)
        for name in names:
            self._entry(function.__globals__, name, names)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not assigned yet
                now = partial(getattr, cell, "cell_contents")
                self._variable(now(), now, partial(setattr, cell, "cell_contents"), names)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), vars(function)):
            self.value(value, names)

    def classes(self, kind: type) -> None:
        """Remember the attributes of a class and its ancestors that are no methods."""
        for ancestor in _ancestors(kind):
            if not self._is_new(ancestor):
                continue
            before = _attributes(ancestor)
            for key, value in before.items():
                self._variable(value, partial(vars(ancestor).get, key), partial(setattr, ancestor, key), set())
            self.restores.append(partial(_forget_new, ancestor, before.keys()))

    def value(self, value: Any, names: set[str], depth: int = 0) -> None:
        """Remember what an object holds, so far as a pass may change it in place.

        Args:
            value: any object.
            names: in the code that holds it: the methods of the object that it may call.
            depth: how deep in other objects it lies.
        """
        if isinstance(value, type):
            if not _is_librarys(value):
                self.classes(value)
                self._methods(value, names | {"__init__", "forward"})
        elif isinstance(value, _FUNCTIONS) or hasattr(value, "cache_clear"):
            self.follow(value, type(value.__self__) if isinstance(value, MethodType) else None)
            arguments = value.args if isinstance(value, partial) else ()
            for held in (getattr(value, "__self__", None), *arguments):
                self.value(held, names, depth + 1)
        elif depth < MOST_NESTED and not isinstance(value, (*_UNCHANGING, ModuleType)) and self._is_new(value):
            if (restore := _in_place(value)) is not None:
                self.restores.append(restore)
            if isinstance(value, (list, tuple, deque, dict)):
                if len(value) > MOST_PARTS:
                    return
                for part in [*(value.values() if isinstance(value, dict) else value)]:
                    self.value(part, names, depth + 1)
            elif isinstance(value, SimpleNamespace) or (hasattr(value, "__dict__") and not _is_librarys(type(value))):
                self.classes(type(value))
                self._methods(type(value), names | {"__call__", "forward"})
                self.value(vars(value), names, depth + 1)

    def _entry(self, variables: dict[str, Any], name: str, names: set[str]) -> None:
        """Remember a global variable, or that there is none; of a file those that code names: `state.counter`."""
        value, key = variables.get(name), (id(variables), name)
        if name not in variables:
            self.restores.append(partial(variables.pop, name, None))
        elif isinstance(value, ModuleType):
            if not _is_librarys(value) and key not in self._followed:
                self._followed.add(key)
                for attribute in names & vars(value).keys():
                    self._entry(vars(value), attribute, names)
        else:
            self._variable(value, partial(variables.get, name), partial(variables.__setitem__, name), names)

    def _variable(self, before: Any, now: Callable[[], Any], put: Callable[[Any], None], names: set[str]) -> None:
        """Remember the value of a global, an attribute of a class or a variable of a closure."""
        if isinstance(before, itertools.count):  # a pass takes from it in place, and it has no way back
            start, text = ast.literal_eval(repr(before).removeprefix("count")), repr(before)
            rewound = itertools.count(*(start if isinstance(start, tuple) else (start,)))
            self.restores.append(lambda: put(rewound) if repr(before) != text else None)
        self.restores.append(lambda: put(before) if now() is not before else None)
        self.value(before, names)

    def _methods(self, owner: type | None, names: set[str]) -> None:
        """Follow the methods of a class that code names."""
        for method in [vars(kind).get(name) for kind in _ancestors(owner) for name in names]:
            if isinstance(method, _FUNCTIONS) or hasattr(method, "cache_clear"):
                self.follow(method, owner)

    def _cache(self, function: Any) -> None:
        """A `functools` cache that a pass fills may hold the copy, or what it computed: it is emptied."""
        before = function.cache_info().currsize
        self.restores.append(lambda: function.cache_clear() if function.cache_info().currsize != before else None)

    def _is_new(self, value: object) -> bool:
        return id(value) not in self._seen and self._seen.setdefault(id(value), value) is value


def _forget_new(kind: type, known: Iterable[str]) -> None:
    for key in _attributes(kind).keys() - set(known):
        delattr(kind, key)


def _ancestors(kind: type | None) -> list[type]:
    return [ancestor for ancestor in getattr(kind, "__mro__", ()) if not _is_librarys(ancestor)]


def _is_librarys(value: Any) -> bool:
    """Whether a function, a class or a file is torch's or Python's own, of which a pass changes nothing by itself."""
    name = str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
    return is_torchs(value) or name.split(".")[0] in sys.stdlib_module_names


def _attributes(kind: type) -> dict[str, Any]:
    """What a class holds beside its methods and what Python itself puts there."""
    hidden = (*_FUNCTIONS, type)
    return {key: value for key, value in vars(kind).items() if key[:2] != "__" and not isinstance(value, hidden)}


def _names(code: CodeType) -> set[str]:
    """All names of globals and attributes in a function's code, and in the functions that it defines."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _python_function(function: Any) -> FunctionType | None:
    """The function in a method, a property, a partial or a decorator's; None where there is none."""
    for _ in range(MOST_NESTED):
        if isinstance(function, FunctionType):
            return function
        inner = [getattr(function, name, None) for name in ("__func__", "fget", "func", "__wrapped__")]
        function = next((part for part in inner if part is not None), None)
    return None


def _in_place(value: Any) -> Callable[[], Any] | None:
    """A function that puts an object's insides back; None for one that cannot be changed, or is too large."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, (list, deque, set, dict)):
        return partial(_refill, value, dict(value) if isinstance(value, dict) else [*value], _parts(value))
    if type(value) is Tensor and value.numel() <= MOST_NUMBERS:  # no parameter: a pass does not change those
        return partial(_write_back, value, value.detach().clone(), value.grad_fn is not None)
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size <= MOST_NUMBERS:
        return partial(numpy.copyto, value, value.copy())
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def _parts(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


def _refill(value: Any, contents: Any, before: list[Any]) -> None:
    after = _parts(value)
    if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
        value.clear()
        (value.extend if isinstance(value, (list, deque)) else value.update)(contents)


def _write_back(value: Tensor, before: Tensor, had_history: bool) -> None:
    if value.grad_fn is not None and not had_history:
        value.detach_()
    if not torch.equal(value, before):
        value.copy_(before)
