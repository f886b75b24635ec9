"""What Python's own functions return for the values of a reading: builtins, `itertools`, `functools`, `operator`, and
the methods of texts."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fire_core.weights.flows import PLAIN_TYPES, Flow, Parts, Rest, Shape, Size, Unknown, Weight, merged, notes_in
from fire_core.weights.syntax_trees import attribute_or
from fire_core.weights.topology import words

if TYPE_CHECKING:
    import ast

    from fire_core.weights.function_reading import FunctionReading

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    map, filter, zip, enumerate, list, tuple, reversed, iter, sorted, len, int, float, str, getattr, range,
    functools.reduce, itertools.chain, itertools.islice, itertools.pairwise, itertools.starmap,
)  # fmt: skip
# By name, so that `numpy.max` counts too; functions in Python of such a name are read like any other.
NAMES = words("sum min max isinstance hasattr round abs bool next any all")
PLAIN_FUNCTIONS = (int, float, str, bool, round, abs, min, max, range)  # run on numbers and texts that are known
GETTERS = (operator.attrgetter, operator.itemgetter)


def is_pythons(callee: Any) -> bool:
    """Return whether `PythonCalls` knows what a function returns."""
    if any(callee is function for function in FUNCTIONS) or (
        isinstance(callee, BuiltinFunctionType) and callee == itertools.chain.from_iterable
    ):
        return True
    is_by_name = attribute_or(callee, "__name__") in NAMES and not inspect.isfunction(callee)
    return is_by_name or is_of_text(callee)


def is_of_text(callee: Any) -> bool:
    """Return whether a value is a method of a text, such as `"layer{}".format`."""
    return isinstance(attribute_or(callee, "__self__", None), str)


def truth_of(value: Any) -> bool | None:
    """Return whether a condition is true; None if that is not known."""
    return bool(value) if isinstance(value, (int, float, str, type(None))) else None


class PythonCalls:
    """The calls of Python's own functions in one function that is read.

    Args:
        reading: the reading of that function, which knows the items and attributes of values.
    """

    def __init__(self, reading: FunctionReading) -> None:
        self.reading = reading

    def call(self, callee: Any, args: list[Any], kwargs: Mapping[str, Any], node: ast.AST) -> Any:
        """Return what a function returns for which `is_pythons` is true.

        Args:
            callee: the function.
            args: its arguments.
            kwargs: those by name.
            node: the call.
        """
        if "start" in kwargs and len(args) == 1:
            args = [*args, kwargs["start"]]
        if is_of_text(callee):
            return Unknown() if kwargs else self._plain_value(callee, args, node)
        match callee.__name__, len(args):
            case ("list" | "tuple" | "iter" | "sorted" | "reversed") as name, _:
                return self._listed(name, args)
            case "map", count if count > 1:
                return self._mapped(args[0], args[1:], node)
            case "filter", 2:
                return self._filtered(args[0], args[1], node)
            case "starmap", 2:
                rows = self._items_or_escape(args[1], "starmap")
                return Unknown() if rows is None else [self._call_on(args[0], row, node) for row in rows]
            case "reduce", 2 | 3:
                return self._reduced(args[0], args[1], args[2:], node)
            case ("chain" | "from_iterable" | "islice" | "pairwise" | "enumerate" | "zip") as name, _:
                return self._iterated(name, args)
            case "getattr", 3 if isinstance(args[0], nn.Module) and self._has(args[0], args[1]) is False:
                return args[2]
            case "getattr", count if count > 1 and isinstance(args[1], str):
                return self.reading.attribute_of(args[0], args[1])
            case "hasattr", 2 if isinstance(args[0], nn.Module) and self._has(args[0], args[1]) is not None:
                return self._has(args[0], args[1])
            case ("any" | "all") as name, 1:
                return self._truth_of_items(name == "any", self._items_or_escape(args[0], name))
            case "next", count if count:
                items = self._items_or_escape(args[0], "next")
                return items[0] if items else Unknown()
            case "sum", count if count:
                items = [*(self._items_or_escape(args[0], "sum") or []), *args[1:]]
                flows = [item for item in items if isinstance(item, Flow)]
                return merged(flows, notes_in(items)) if flows else Unknown()
            case "len", 1 if isinstance(args[0], (str, range)):
                return len(args[0])
            case "len", 1 if not isinstance(args[0], (Unknown, Flow, Shape, Parts)):
                items = self.reading.items_of(args[0])
                return Unknown() if items is None or any(isinstance(item, Rest) for item in items) else len(items)
            case "isinstance", 2 if _are_types(args[1]):
                if isinstance(args[0], (nn.Module, tuple, list, dict)):
                    return isinstance(args[0], args[1])
                return issubclass(Tensor, args[1]) if isinstance(args[0], Flow) else Unknown()
        return self._plain_value(callee, args, node) if not kwargs else self._escaped(callee, [*args, *kwargs.values()])

    def _truth_of_items(self, decides: bool, items: Sequence[Any] | None) -> Any:
        """Return what `any` (an item that is true decides) or `all` (one that is false) says of some items."""
        truths = [None] if items is None else [truth_of(item) for item in items]
        if decides in truths:
            return decides
        return Unknown() if None in truths else not decides

    def _has(self, module: nn.Module, name: Any) -> bool | None:
        """Return whether a module has an attribute; None if that is not known without running its code."""
        kinds = type(module).__mro__
        if not isinstance(name, str) or any("__getattr__" in vars(kind) for kind in kinds if kind is not nn.Module):
            return None
        held = (vars(module), module._parameters, module._buffers, module._modules)
        return any(name in names for names in held) or any(name in vars(kind) for kind in kinds)

    def _escaped(self, callee: Any, arguments: Sequence[Any]) -> Any:
        """Return a value that is not known, of arguments that are followed no further."""
        self.reading.reader.escape(list(arguments), "call", callee.__name__)
        return Size() if any(isinstance(argument, Size) for argument in arguments) else Unknown()

    def call_getter(self, getter: Any, args: list[Any], node: Any) -> Any:
        """Return what `operator.attrgetter` or `itemgetter` takes from a value; what it takes from a tensor escapes."""
        names = getter.__reduce__()[1]
        value = args[0] if args else Unknown()
        if isinstance(getter, operator.attrgetter):
            found = [functools.reduce(self.reading.attribute_of, name.split("."), value) for name in names]
        elif isinstance(value, (Flow, Weight)):
            self.reading.reader.escape(value, "item")
            return Unknown()
        else:
            found = [self.reading.subscript(value, name, node) for name in names]
        return found[0] if len(found) == 1 else tuple(found)

    def _items_or_escape(self, value: Any, name: str) -> list[Any] | None:
        """Return a value's items. If they are not known, the value escapes, and the result is None."""
        items = self.reading.items_of(value)
        if items is None:
            self.reading.reader.escape(value, name)
        return items

    def _listed(self, name: str, args: list[Any]) -> Any:
        """Return a value's items as a list or tuple; a tensor stays what it is."""
        if not args:
            return [] if name == "list" else ()
        items = self.reading.items_of(args[0])
        if items is None:
            return args[0] if isinstance(args[0], (Flow, Parts, Shape)) else [Rest()]
        if name == "tuple":
            return tuple(items)
        return [*reversed(items)] if name == "reversed" else list(items)

    def _mapped(self, function: Any, iterables: Sequence[Any], node: ast.AST) -> Any:
        """Return what a function gives for the items of one or several values, in turn."""
        if isinstance(iterables[0], Parts):
            mapped = self._call_on(function, [iterables[0].flow], node)
            return replace(iterables[0], flow=mapped) if isinstance(mapped, Flow) else Unknown()
        lists = [self._items_or_escape(value, "map") for value in iterables]
        known = [items for items in lists if items is not None]
        if len(known) < len(lists):
            return Unknown()
        return [self._call_on(function, row, node) for row in zip(*known, strict=False)]

    def _filtered(self, keeps: Any, value: Any, node: ast.AST) -> Any:
        """Return a value's items without those that a function certainly leaves out."""
        if isinstance(value, Parts):
            return value
        items = self._items_or_escape(value, "filter")
        if items is None:
            return Unknown()
        kept = [(item, item if keeps is None else self._call_on(keeps, [item], node)) for item in items]
        return [item for item, is_kept in kept if truth_of(is_kept) is not False]

    def _reduced(self, function: Any, value: Any, initial: Sequence[Any], node: ast.AST) -> Any:
        """Return what a function of two arguments makes of a value's items, from left to right."""
        items = self._items_or_escape(value, "reduce")
        if items is None or not [*initial, *items]:
            self.reading.reader.escape(list(initial), "reduce")
            return Unknown()
        return functools.reduce(lambda so_far, item: self._call_on(function, [so_far, item], node), [*initial, *items])

    def _iterated(self, name: str, args: list[Any]) -> Any:
        """Return the items over which an iterator of `itertools`, `enumerate` or `zip` goes."""
        if name in ("islice", "enumerate"):
            args, bounds = args[:1], args[1:]
        lists = [self._items_or_escape(arg, name) for arg in args]
        if name == "zip":
            longest = max((len(items or ()) for items in lists), default=0)
            unknown = self.reading.reader.unknown_items
            rows = [unknown(arg, longest) if items is None else items for arg, items in zip(args, lists, strict=True)]
            return [*zip(*rows, strict=False)]
        if name == "chain":
            return [item for items in lists for item in (items or [Rest()])]
        first = lists[0] if lists else None
        if first is None:
            return Unknown()
        if name == "from_iterable":
            return self._iterated("chain", first)
        if name == "enumerate":
            start = bounds[0] if bounds else 0
            return [(start + i if isinstance(start, int) else Unknown(), item) for i, item in enumerate(first)]
        if name == "pairwise":
            return [*itertools.pairwise(first)]
        return first[slice(*bounds)] if all(isinstance(bound, int | None) for bound in bounds) else first

    def _call_on(self, function: Any, args: Any, node: ast.AST) -> Any:
        """Return what a function of the model's code gives for arguments, of which some may not be known."""
        if not isinstance(args, (tuple, list)) or any(isinstance(arg, Rest) for arg in args):
            return Rest()
        return self.reading.call_value(function, list(args), {}, node)

    def _plain_value(self, callee: Any, args: list[Any], node: ast.AST) -> Any:
        """Return what a function gives for plain values, or `abs` and `round` of a tensor; all else is not known."""
        if len(args) == 1 and isinstance(args[0], Flow) and callee.__name__ in ("abs", "round"):
            return self.reading.call_torch(callee.__name__, args, {}, node)
        if any(callee is function for function in PLAIN_FUNCTIONS) or is_of_text(callee):
            flat = [value for arg in args for value in (arg if isinstance(arg, (tuple, list)) else [arg])]
            if args and all(isinstance(value, PLAIN_TYPES) for value in flat):
                try:
                    return callee(*args)
                except Exception:  # whatever these values are wrong for
                    return Unknown()
        return self._escaped(callee, args)


def _are_types(value: Any) -> bool:
    """Return whether a value can be the second argument of `isinstance`."""
    return all(isinstance(kind, type) for kind in (value if isinstance(value, tuple) else (value,)))
