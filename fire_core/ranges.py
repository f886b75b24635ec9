"""Check arguments and options against their annotations.

    @checked
    def __init__(self, rate: Annotated[float, within(0, 1)] = 0.1, every: Count = 10) -> None:

The type in the annotation refuses text for a number, 1.5 for a whole number, null unless the type includes None, and
NaN and infinity everywhere; the checks in the annotation (`within`) refuse the rest. Programs check their typed options
and the arguments of whatever a `_target_` names (`harness.config`); `checked` does the same for a call from Python. An
argument without an annotation is not checked.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

Check = Callable[[str, Any], str | None]  # (option's name, value) -> an error message, or None if it is accepted
P = ParamSpec("P")
R = TypeVar("R")
LARGEST = 2**63 - 1  # the largest whole number that torch and NumPy have
NoneType = type(None)


def one_of(*accepted: Any) -> Check:
    """Return a check that accepts these values only."""

    def check(option: str, value: Any) -> str | None:
        names = ", ".join(map(str, accepted))
        return None if value in accepted else f"{option}={shown(value)} is unknown; accepted: {names}"

    return check


def at_least(least: float) -> Check:
    """Return a check that accepts numbers of at least `least`."""
    return _number(lambda value: value >= least, f"at least {least}")


def positive() -> Check:
    """Return a check that accepts numbers above 0."""
    return _number(lambda value: value > 0, "positive")


def within(low: float, high: float, open_low: bool = False, open_high: bool = False) -> Check:
    """Return a check that accepts numbers from `low` to `high`, without the ends that are said to be open."""

    def inside(value: float) -> bool:
        return (low < value if open_low else low <= value) and (value < high if open_high else value <= high)

    return _number(inside, f"in {'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}")


def _number(accepts: Callable[[float], bool], words: str) -> Check:
    """Return a check for numbers that `accepts` accepts; `words` describe them in the error message."""

    def check(option: str, value: Any) -> str | None:
        is_accepted = isinstance(value, Real) and accepts(float_of(value))
        return None if is_accepted else f"{option} must be {words}, got {shown(value)}"

    return check


def float_of(value: Any) -> float:
    """Return a number as a float for comparisons; whole numbers stay, as they may be too large for a float."""
    return value if isinstance(value, Integral) else float(value)  # type: ignore[return-value]


Count = Annotated[int, at_least(1)]
Seed = Annotated[int, within(0, 2**32 - 1)]  # the seeds that both NumPy's and torch's generators accept
Depth = Annotated[int, within(1, 1000)]  # number of layers or blocks
Width = Annotated[int, within(1, 2**20)]  # number of units or channels
Share = Annotated[float, within(0, 1)]
Decay = Annotated[float, within(0, 1, open_high=True)]  # decay factor of a running average
Positive = Annotated[float, positive()]
NonNegative = Annotated[float, at_least(0)]


def problem(name: str, value: Any, hint: Any) -> str | None:
    """Return an error message if a value does not agree with an annotation, else None.

    Args:
        name: name of the argument, for the message.
        value: None, a number, a text, or a list, tuple or mapping of such values.
        hint: the annotation. Types that no configuration can hold (a module, a callable) accept everything.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if message := problem(name, value, parts[0]):
            return message
        for check in parts[1:]:
            if callable(check) and (message := check(name, value)):
                return str(message)
        return None
    if origin in (Union, types.UnionType):
        fitting = [part for part in parts if _fits(value, part)]
        return problem(name, value, fitting[0]) if fitting else _wrong_type(name, value, hint)
    if not _fits(value, hint):
        return _wrong_type(name, value, hint)
    if isinstance(value, Sequence) and not isinstance(value, str) and parts:
        item_hints = parts if origin is tuple and parts[-1] is not ... else [parts[0]] * len(value)
        for i, (item, item_hint) in enumerate(zip(value, item_hints, strict=True)):
            if message := problem(f"{name}[{i}]", item, item_hint):
                return message
    return None


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a call, by name, against the annotations of the function or class that is called.

    Raises:
        ValueError: with the first argument that is not accepted, its value and what is accepted.
    """
    hints = _hints(function)
    for name, value in arguments.items():
        if name in hints and (message := problem(name, value, hints[name])):
            raise ValueError(message)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function, or the `__init__` of a class, so that it checks its arguments when it is called.

    The decorated function raises ValueError for an argument that its annotation does not accept.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def shown(value: Any) -> str:
    """Return a value as a configuration file writes it."""
    if value is None:
        return "null"
    if isinstance(value, str) and not value:
        return repr(value)
    return str(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations by argument; none if one cannot be read, as with a name that only a type checker knows."""
    target = function.__init__ if isinstance(function, type) and not is_dataclass(function) else function  # type: ignore[misc]
    try:
        return get_type_hints(target, include_extras=True)
    except Exception:
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotation's type, whatever its range and its items."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    kind = origin or hint
    if kind in (None, NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float) and isinstance(value, bool):  # bool is a subclass of int
        return False
    if kind is int:
        return isinstance(value, Integral) and abs(int(value)) <= LARGEST
    if kind is float:
        # A whole number may be too large for a float, and is always finite.
        return isinstance(value, Integral) or (isinstance(value, Real) and math.isfinite(float(value)))
    if kind is str:
        return isinstance(value, str)
    if kind in (tuple, list) or (isinstance(kind, type) and _takes_lists(kind)):
        is_list = isinstance(value, Collection) and not isinstance(value, str | Mapping)
        return is_list and (kind is not tuple or not parts or parts[-1] is ... or len(value) == len(parts))
    if kind in (dict, Mapping):
        return isinstance(value, Mapping)
    return True


def _takes_lists(kind: type) -> bool:
    """Return whether a type is an abstract collection that a list satisfies, such as Sequence."""
    return kind.__module__ == "collections.abc" and issubclass(list, kind) and kind is not typing.Hashable


# How error messages call a type.
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a table",
    Mapping: "a table",
}


def _words(hint: Any) -> str:
    """Return how an error message calls the type of an annotation."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _words(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in parts))
    if origin is Literal:
        return " or ".join(map(str, parts))
    if hint is NoneType:
        return "null"
    if origin is tuple and parts[-1] is not ...:
        return f"a list of {len(parts)}"
    return WORDS.get(origin or hint, "a list")


def _wrong_type(name: str, value: Any, hint: Any) -> str:
    """Return the error message for a value that is not of an annotation's type."""
    words = _words(hint)
    if isinstance(value, float) and not math.isfinite(value):
        words = words.replace("a number", "a finite number")
    if isinstance(value, Integral) and abs(int(value)) > LARGEST:
        words = words.replace("a whole number", "a whole number of at most 64 bits")
    return f"{name} must be {words}, got {repr(value) if isinstance(value, str) else shown(value)}"
