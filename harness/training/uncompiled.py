"""Run a function without what `torch.compile` has compiled."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, in which networks that were compiled run as plain modules do.

    What was compiled before hooks were put on does not run them, so everything that measures by hooks, and every method
    that acts, works on plain modules.
    """

    @functools.wraps(function)
    def with_plain_modules(*arguments: P.args, **named: P.kwargs) -> T:
        with torch.compiler.set_stance("force_eager"):
            return function(*arguments, **named)

    return with_plain_modules
