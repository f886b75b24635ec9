"""The source of functions as syntax trees, and the values that names in them have; nothing is run."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import nn

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@lru_cache(maxsize=256)
def _functions_of(filename: str, _: int) -> dict[int, list[Function]]:
    """The functions of a file by the line on which they begin; empty where it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    functions: dict[int, list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            functions.setdefault(first, []).append(node)
    return functions


def source_of(function: Any) -> Function | None:
    """The syntax tree of a Python function, of a lambda too; None where its source cannot be read.

    Args:
        function: a function, without `self`; decorated ones are looked through.
    """
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return None
    nodes = _functions_of(code.co_filename, len(linecache.getlines(code.co_filename))).get(code.co_firstlineno, [])
    fitting = [node for node in nodes if _name(node) == code.co_name and _arguments(node) == _parameters(code)]
    return fitting[0] if len(fitting) == 1 or len({ast.dump(node) for node in fitting}) == 1 else None


def _name(node: Function) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _arguments(node: Function) -> list[str]:
    arguments = node.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _parameters(code: Any) -> list[str]:
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def file_of(function: Any) -> str:
    """The name of the file that a function stands in."""
    return str(inspect.unwrap(function).__code__.co_filename)


def place(filename: str, line: int) -> str:
    """`model.py:12`, for messages."""
    return f"{Path(filename).name}:{line}"


def outer_names(function: Any) -> dict[str, Any]:
    """The values of names that a function does not define itself: of builtins, its module and functions around it."""
    function = inspect.unwrap(function)
    names: dict[str, Any] = vars(builtins) | function.__globals__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def method_of(module: nn.Module, name: str, after: type | None = None) -> tuple[Any, type | None]:
    """A method's function as the class defines it, and that class; None where there is none.

    Args:
        module: an instance.
        name: of the method.
        after: a class of its line of ancestors: only those behind it count, as for `super()`.
    """
    ancestors = type(module).__mro__
    if after is not None:
        ancestors = ancestors[ancestors.index(after) + 1 :] if after in ancestors else ()
    elif name in vars(module):
        own = vars(module)[name]
        return (own.__func__, type(module)) if inspect.ismethod(own) and own.__self__ is module else (own, None)
    for ancestor in ancestors:
        if name in vars(ancestor):
            return vars(ancestor)[name], ancestor
    return None, None


def forward_of(module: nn.Module) -> tuple[Any, type | None]:
    """The function that a call of the module runs, and the class that defines it."""
    return method_of(module, "forward")


def is_torchs(function: Any) -> bool:
    """Whether a function or class is torch's own."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__module__", None) or ""
    if name in ("builtins", "") and hasattr(function, "__self__"):  # torch.chunk, of a class of C
        name = getattr(type(function.__self__), "__module__", "") or getattr(function.__self__, "__name__", "")
        return name.startswith("torch") or getattr(function.__self__, "__name__", "").startswith("torch")
    return name == "torch" or name.startswith(("torch.", "torch_"))
