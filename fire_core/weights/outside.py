"""State outside of a module that its forward pass may change; it is put back after a pass that only observes.

Such a pass runs on a copy, which shares nothing that the module itself holds. What it can still change are globals,
counters and caches of a class, variables that closures share, defaults of arguments and `functools` caches. Code has to
name them, so the functions that `forward` calls are followed, and the values of all names in them are recorded.
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

from fire_core.weights.syntax_trees import is_torchs

# Limits, so that recording stays cheap:
MAX_ELEMENTS = 2**20  # elements of a tensor or array that is copied
MAX_FUNCTIONS = 1000  # functions that are followed, if code calls deep into a library
MAX_DEPTH = 6  # objects within each other
MAX_ITEMS = 10_000  # items of a list or mapping that are looked into; the list itself is put back whatever its length
_FUNCTIONS = (FunctionType, MethodType, partial, property, staticmethod, classmethod)
_IMMUTABLE = (int, float, complex, str, bytes, type(None))


@contextmanager
def state_outside_restored(module: nn.Module) -> Iterator[None]:
    """Put back, at the end of this block, what a forward pass of a module, or of its copy, changed outside of it.

    It does not put back files, devices, other processes, memory of compiled extensions, objects with slots, tensors and
    arrays of more than a million numbers, and what code reaches by a name that it computes (`getattr(x, name)`).

    Args:
        module: the module.
    """
    recorder = _Recorder()
    for part in module.modules():
        with suppress(Exception):  # what cannot be recorded is not put back
            recorder.classes(type(part))
            recorder.follow(getattr(type(part), "forward", None), type(part))
            for value in vars(part).values():
                if isinstance(value, (type, *_FUNCTIONS)):  # a copy of the module shares these with it
                    recorder.value(value, set())
    try:
        yield
    finally:
        with torch.no_grad():
            for restore in reversed(recorder.restores):
                with suppress(Exception):  # an object that refuses to be changed back
                    restore()


class _Recorder:
    """Records the values that a forward pass may change.

    Attributes:
        restores: functions that put a value back if it was changed.
    """

    def __init__(self) -> None:
        self.restores: list[Callable[[], Any]] = []
        self._visited: dict[int, object] = {}  # by `id`; keeping the objects alive keeps each `id` unique
        self._followed: set[tuple[Any, ...]] = set()
        self._queue: deque[tuple[Any, type | None]] = deque()

    def follow(self, function: Any, owner: type | None) -> None:
        """Record the values of the names in a function, and in the functions that it calls.

        Args:
            function: a function, method, property or other callable; torch's own are skipped.
            owner: the class whose methods it may call.
        """
        self._queue.append((function, owner))
        if len(self._queue) == 1:  # in a recursive call, the outermost one empties the queue
            while self._queue:
                with suppress(Exception):  # such as an object that has an attribute of every name
                    self._record_function(*self._queue[0])
                self._queue.popleft()

    def _record_function(self, function: Any, owner: type | None) -> None:
        """Record the values of the names in one function, and queue the functions among them."""
        if hasattr(function, "cache_clear"):
            self._cache(function)
        function = _python_function(function)
        key = (id(function), owner)
        if function is None or _is_of_library(function) or key in self._followed or len(self._followed) > MAX_FUNCTIONS:
            return
        self._followed.add(key)
        names = _names(function.__code__)
        self._methods(owner, names)
        for name in names:
            self._entry(function.__globals__, name, names)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not assigned yet
                read = partial(getattr, cell, "cell_contents")
                self._variable(read(), read, partial(setattr, cell, "cell_contents"), names)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), vars(function)):
            self.value(value, names)

    def classes(self, kind: type) -> None:
        """Record the attributes of a class and its ancestors that are no methods."""
        for ancestor in _ancestors(kind):
            if not self._visit(ancestor):
                continue
            before = _attributes(ancestor)
            for key, value in before.items():
                self._variable(value, partial(vars(ancestor).get, key), partial(setattr, ancestor, key), set())
            self.restores.append(partial(_delete_new_attributes, ancestor, before.keys()))

    def value(self, value: Any, names: set[str], depth: int = 0) -> None:
        """Record what an object holds, as far as a pass may change it in place.

        Args:
            value: any object.
            names: all names in the code that uses the object, which include the methods that it may call.
            depth: how many other objects it is nested in.
        """
        if isinstance(value, type):
            if not _is_of_library(value):
                self.classes(value)
                self._methods(value, names | {"__init__", "forward"})
        elif isinstance(value, _FUNCTIONS) or hasattr(value, "cache_clear"):
            self.follow(value, type(value.__self__) if isinstance(value, MethodType) else None)
            arguments = value.args if isinstance(value, partial) else ()
            for bound in (getattr(value, "__self__", None), *arguments):
                self.value(bound, names, depth + 1)
        elif depth < MAX_DEPTH and not isinstance(value, (*_IMMUTABLE, ModuleType)) and self._visit(value):
            if (restore := _in_place(value)) is not None:
                self.restores.append(restore)
            if isinstance(value, (list, tuple, deque, dict)):
                if len(value) > MAX_ITEMS:
                    return
                for part in [*(value.values() if isinstance(value, dict) else value)]:
                    self.value(part, names, depth + 1)
            elif isinstance(value, SimpleNamespace) or (hasattr(value, "__dict__") and not _is_of_library(type(value))):
                self.classes(type(value))
                self._methods(type(value), names | {"__call__", "forward"})
                self.value(vars(value), names, depth + 1)

    def _entry(self, variables: dict[str, Any], name: str, names: set[str]) -> None:
        """Record a global variable, or that there is none; of an imported file, the variables that code names.

        Args:
            variables: the globals of a file.
            name: name of the variable.
            names: all names in the code, among them `counter` of `state.counter`.
        """
        value, key = variables.get(name), (id(variables), name)
        if name not in variables:
            self.restores.append(partial(variables.pop, name, None))
        elif isinstance(value, ModuleType):
            if not _is_of_library(value) and key not in self._followed:
                self._followed.add(key)
                for attribute in names & vars(value).keys():
                    self._entry(vars(value), attribute, names)
        else:
            self._variable(value, partial(variables.get, name), partial(variables.__setitem__, name), names)

    def _variable(self, before: Any, read: Callable[[], Any], write: Callable[[Any], None], names: set[str]) -> None:
        """Record the value of a global, of an attribute of a class or of a variable of a closure.

        Args:
            before: the value now.
            read: returns the value at a later time.
            write: sets it.
            names: all names in the code that uses it.
        """
        if isinstance(before, itertools.count):  # `next` changes it in place and cannot be undone, so a new one is made
            start, text = ast.literal_eval(repr(before).removeprefix("count")), repr(before)
            rewound = itertools.count(*(start if isinstance(start, tuple) else (start,)))
            self.restores.append(lambda: write(rewound) if repr(before) != text else None)
        self.restores.append(lambda: write(before) if read() is not before else None)
        self.value(before, names)

    def _methods(self, owner: type | None, names: set[str]) -> None:
        """Follow those methods of a class whose names code uses."""
        for method in [vars(kind).get(name) for kind in _ancestors(owner) for name in names]:
            if isinstance(method, _FUNCTIONS) or hasattr(method, "cache_clear"):
                self.follow(method, owner)

    def _cache(self, function: Any) -> None:
        """Have a `functools` cache emptied if a pass fills it, since it may hold the copy or what the copy computed."""
        before = function.cache_info().currsize

        def empty_if_filled() -> None:
            if function.cache_info().currsize != before:
                function.cache_clear()

        self.restores.append(empty_if_filled)

    def _visit(self, value: object) -> bool:
        """Mark an object as visited, and return whether it was not visited before."""
        if id(value) in self._visited:
            return False
        self._visited[id(value)] = value
        return True


def _delete_new_attributes(kind: type, known: Iterable[str]) -> None:
    """Delete the attributes of a class that are not in `known`."""
    for key in _attributes(kind).keys() - set(known):
        delattr(kind, key)


def _ancestors(kind: type | None) -> list[type]:
    """Return a class and its ancestors, without those of torch and Python."""
    return [ancestor for ancestor in getattr(kind, "__mro__", ()) if not _is_of_library(ancestor)]


def _is_of_library(value: Any) -> bool:
    """Return whether a function, class or file is torch's or Python's own, which a pass does not change by itself."""
    name = str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
    return is_torchs(value) or name.split(".")[0] in sys.stdlib_module_names


def _attributes(kind: type) -> dict[str, Any]:
    """Return the attributes of a class without methods, inner classes and those with names such as `__doc__`."""
    hidden = (*_FUNCTIONS, type)
    return {key: value for key, value in vars(kind).items() if key[:2] != "__" and not isinstance(value, hidden)}


def _names(code: CodeType) -> set[str]:
    """Return all names of globals and attributes in a function's code, and in the functions that it defines."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _python_function(function: Any) -> FunctionType | None:
    """Return the Python function in a method, property, partial or decorator; None if there is none."""
    for _ in range(MAX_DEPTH):
        if isinstance(function, FunctionType):
            return function
        inner = [getattr(function, name, None) for name in ("__func__", "fget", "func", "__wrapped__")]
        function = next((part for part in inner if part is not None), None)
    return None


def _in_place(value: Any) -> Callable[[], Any] | None:
    """Return a function that puts the content of an object back; None if it is of another kind or too large."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, (list, deque, set, dict)):
        return partial(_refill, value, dict(value) if isinstance(value, dict) else [*value], _items(value))
    if type(value) is Tensor and value.numel() <= MAX_ELEMENTS:  # not a parameter, which a pass does not change
        return partial(_write_back, value, value.detach().clone(), value.grad_fn is not None)
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size <= MAX_ELEMENTS:
        return partial(numpy.copyto, value, value.copy())
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def _items(value: Any) -> list[Any]:
    """Return the items of a list, deque or set, or the keys and values of a mapping."""
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


def _refill(value: Any, contents: Any, before: list[Any]) -> None:
    """Put the content of a list, deque, set or mapping back if any item is another object than before.

    Args:
        value: the object, changed in place.
        contents: a copy of its content.
        before: what `_items` returned before.
    """
    after = _items(value)
    if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
        value.clear()
        if isinstance(value, (list, deque)):
            value.extend(contents)
        else:
            value.update(contents)


def _write_back(value: Tensor, before: Tensor, had_history: bool) -> None:
    """Put the numbers of a tensor back, and detach it from an autograd history that it did not have."""
    if value.grad_fn is not None and not had_history:
        value.detach_()
    if not torch.equal(value, before):
        value.copy_(before)
