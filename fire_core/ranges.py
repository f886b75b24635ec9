"""What an argument or an option accepts, as part of its annotation.

    @checked
    def __init__(self, rate: Annotated[float, within(0, 1)] = 0.1, every: Count = 10) -> None:

The annotation's type refuses text for a number, 1.5 for a whole number, null where it is not named, and NaN and
infinity everywhere; its checks refuse the rest. Programs check their typed options and the arguments of whatever a
`_target_` names (`harness.config`); `checked` does the same for a call from Python. An argument without an
annotation is not checked.
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

Check = Callable[[str, Any], str | None]  # option and value -> what is wrong with it, None: nothing
P = ParamSpec("P")
R = TypeVar("R")
LARGEST = 2**63 - 1  # of whole numbers: neither torch nor NumPy has larger ones
NoneType = type(None)


def one_of(*accepted: Any) -> Check:
    """One of these values."""

    def check(option: str, value: Any) -> str | None:
        names = ", ".join(map(str, accepted))
        return None if value in accepted else f"{option}={shown(value)} is unknown; accepted: {names}"

    return check


def at_least(least: float) -> Check:
    """A number of at least this."""
    return _number(lambda value: value >= least, f"at least {least}")


def positive() -> Check:
    """A number above 0."""
    return _number(lambda value: value > 0, "positive")


def within(low: float, high: float, open_low: bool = False, open_high: bool = False) -> Check:
    """A number in [low, high], without the ends that are open."""

    def inside(value: float) -> bool:
        return (low < value if open_low else low <= value) and (value < high if open_high else value <= high)

    return _number(inside, f"in {'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}")


def _number(accepts: Callable[[float], bool], words: str) -> Check:
    def check(option: str, value: Any) -> str | None:
        good = isinstance(value, Real) and accepts(float_of(value))
        return None if good else f"{option} must be {words}, got {shown(value)}"

    return check


def float_of(value: Any) -> float:
    """A number that can be compared; whole numbers beyond the largest float are compared as they are."""
    return value if isinstance(value, Integral) else float(value)  # type: ignore[return-value]


Count = Annotated[int, at_least(1)]
Seed = Annotated[int, within(0, 2**32 - 1)]  # what NumPy's and torch's generators all take
Depth = Annotated[int, within(1, 1000)]  # layers, blocks
Width = Annotated[int, within(1, 2**20)]  # units, channels
Share = Annotated[float, within(0, 1)]
Decay = Annotated[float, within(0, 1, open_high=True)]  # of a running average
Positive = Annotated[float, positive()]
NonNegative = Annotated[float, at_least(0)]


def problem(name: str, value: Any, hint: Any) -> str | None:
    """What is wrong with a value that should be as an annotation says; None: nothing.

    Args:
        name: of the argument, for the message.
        value: None, numbers, texts, and lists, tuples and mappings of such.
        hint: of types that no configuration can hold (a module, a callable) nothing is asked.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        wrong = problem(name, value, parts[0])
        checks = (check(name, value) for check in parts[1:] if callable(check))
        return wrong or next((found for found in checks if found), None)
    if origin in (Union, types.UnionType):
        fitting = [part for part in parts if _fits(value, part)]
        return problem(name, value, fitting[0]) if fitting else _wrong_type(name, value, hint)
    if not _fits(value, hint):
        return _wrong_type(name, value, hint)
    if isinstance(value, Sequence) and not isinstance(value, str) and parts:
        items = parts if origin is tuple and parts[-1] is not ... else [parts[0]] * len(value)
        found = (problem(f"{name}[{i}]", *pair) for i, pair in enumerate(zip(value, items, strict=True)))
        return next((wrong for wrong in found if wrong), None)
    return None


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Hold the arguments of a call, by name, against the annotations of what is called.

    Raises:
        ValueError: with the first argument that is not accepted, its value and what is accepted.
    """
    hints = _hints(function)
    for name, value in arguments.items():
        if name in hints and (wrong := problem(name, value, hints[name])):
            raise ValueError(wrong)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function (a class: its `__init__`) check its arguments when it is called.

    Raises:
        ValueError: by the call; see `check_arguments`.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def shown(value: Any) -> str:
    """A value as a configuration writes it."""
    return "null" if value is None else repr(value) if isinstance(value, str) and not value else str(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations by argument; none where they cannot be read (names that only a type checker knows)."""
    target = function.__init__ if isinstance(function, type) and not is_dataclass(function) else function  # type: ignore[misc]
    try:
        return get_type_hints(target, include_extras=True)
    except Exception:
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotation's type, whatever its range and its items."""
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
    if kind in (int, float) and isinstance(value, bool):  # to python a truth value is a number
        return False
    if kind is int:
        return isinstance(value, Integral) and abs(int(value)) <= LARGEST
    if kind is float:
        return isinstance(value, Real) and math.isfinite(_finite(value))
    if kind is str:
        return isinstance(value, str)
    if kind in (tuple, list) or (isinstance(kind, type) and _takes_lists(kind)):
        is_list = isinstance(value, Collection) and not isinstance(value, str | Mapping)
        return is_list and (kind is not tuple or not parts or parts[-1] is ... or len(value) == len(parts))
    if kind in (dict, Mapping):
        return isinstance(value, Mapping)
    return True


def _takes_lists(kind: type) -> bool:
    return kind.__module__ == "collections.abc" and issubclass(list, kind) and kind is not typing.Hashable


def _finite(value: Any) -> float:
    return 0.0 if isinstance(value, Integral) else float(value)  # a whole number may be too large for a float


WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a table",
    Mapping: "a table",
}


def _words(hint: Any) -> str:
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
    words = _words(hint)
    if isinstance(value, float) and not math.isfinite(value):
        words = words.replace("a number", "a finite number")
    if isinstance(value, Integral) and abs(int(value)) > LARGEST:
        words = words.replace("a whole number", "a whole number of at most 64 bits")
    return f"{name} must be {words}, got {repr(value) if isinstance(value, str) else shown(value)}"
