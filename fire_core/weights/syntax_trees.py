"""The source of functions as syntax trees, and the values of the names in them. No function is run."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.autograd import Function as Autograd

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@lru_cache(maxsize=256)
def _functions_of(filename: str, line_count: int) -> dict[int, list[Function]]:
    """Return the functions of a file by the line on which they begin; empty if its source cannot be read.

    Args:
        filename: the file.
        line_count: its number of lines, so that the cache reads a file again whose length has changed.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    functions: dict[int, list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            first_line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            functions.setdefault(first_line, []).append(node)
    return functions


def source_of(function: Any) -> Function | None:
    """Return the syntax tree of a Python function or lambda; None if its source cannot be read.

    Args:
        function: a function, not a bound method; the function inside a decorator is taken.
    """
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return None
    nodes = _functions_of(code.co_filename, len(linecache.getlines(code.co_filename))).get(code.co_firstlineno, [])
    fitting = [node for node in nodes if _name(node) == code.co_name and _arguments(node) == _parameters(code)]
    # Several on one line, such as two lambdas, cannot be told apart, unless they are equal.
    return fitting[0] if len(fitting) == 1 or len({ast.dump(node) for node in fitting}) == 1 else None


def _name(node: Function) -> str:
    """Return the name of a function as its code object has it."""
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _arguments(node: Function) -> list[str]:
    """Return the names of a syntax tree's arguments, without `*args` and `**kwargs`."""
    arguments = node.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _parameters(code: Any) -> list[str]:
    """Return the names of a code object's arguments, without `*args` and `**kwargs`."""
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def file_of(function: Any) -> str:
    """Return the name of the file with a function's source."""
    return str(inspect.unwrap(function).__code__.co_filename)


def place(filename: str, line: int) -> str:
    """Return a line of a file as `model.py:12`, for messages."""
    return f"{Path(filename).name}:{line}"


def outer_names(function: Any) -> dict[str, Any]:
    """Return the values of the names that a function can use without defining them.

    They are the builtins, the globals of its module, and the variables of functions around it.
    """
    function = inspect.unwrap(function)
    names: dict[str, Any] = vars(builtins) | function.__globals__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def method_of(module: nn.Module, name: str, after: type | None = None) -> tuple[Any, type | None]:
    """Return the function of a method, without `self`, and the class that defines it; (None, None) if there is none.

    Args:
        module: the module whose method it is. A function in an attribute of the instance itself comes before those of
            its class; the second result is then None.
        name: name of the method.
        after: search only the classes behind this one in the method resolution order, as `super()` does.
    """
    if after is None and name in vars(module):
        attribute = vars(module)[name]
        if inspect.ismethod(attribute) and attribute.__self__ is module:
            return attribute.__func__, type(module)
        return attribute, None
    return function_of_class(type(module), name, after)


def function_of_class(kind: type, name: str, after: type | None = None) -> tuple[Any, type | None]:
    """Return an attribute of a class as it is defined, and the class that defines it; (None, None) if there is none.

    Args:
        kind: the class.
        name: name of the attribute.
        after: search only the classes behind this one, as `super()` does.
    """
    ancestors = kind.__mro__
    if after is not None:
        ancestors = ancestors[ancestors.index(after) + 1 :] if after in ancestors else ()
    for ancestor in ancestors:
        if name in vars(ancestor):
            return vars(ancestor)[name], ancestor
    return None, None


def forward_of(module: nn.Module) -> tuple[Any, type | None]:
    """Return the function that a call of a module runs, and the class that defines it; see `method_of`."""
    return method_of(module, "forward")


def is_torchs(function: Any) -> bool:
    """Return whether a function or class is torch's own, also within `functools.partial`."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__module__", None) or ""
    if name in ("builtins", "") and hasattr(function, "__self__"):  # a function in C, such as torch.chunk
        name = getattr(type(function.__self__), "__module__", "") or getattr(function.__self__, "__name__", "")
        return name.startswith("torch") or getattr(function.__self__, "__name__", "").startswith("torch")
    return name == "torch" or name.startswith(("torch.", "torch_"))


# Packages whose classes bring many methods that are no part of a model, and whose fused layers `known` has rules for.
LIBRARIES = (
    "torch", "torchvision", "timm", "transformers", "diffusers", "lightning", "pytorch_lightning", "stable_baselines3",
    "torchrl", "peft", "accelerate",
)  # fmt: skip


def is_of_library(kind: type) -> bool:
    """Return whether a class is Python's own or of one of `LIBRARIES`."""
    return kind.__module__.partition(".")[0] in ("builtins", *LIBRARIES)


def attribute_or(value: Any, name: str, default: Any = "") -> Any:
    """Return an attribute of any object, or a default if it has none or raises whatever it raises."""
    try:
        return getattr(value, name, default)
    except Exception:
        return default


def python_of(callee: Any) -> tuple[Any, int]:
    """Return the Python function that torch runs for a callee which is none itself, or (None, 0).

    These are scripted functions, custom operators, and `apply` of an autograd function. The second result is the number
    of arguments before those of the call: 1 for the context of an autograd function.
    """
    function = attribute_or(callee, "_torchdynamo_inline", None) or attribute_or(callee, "_init_fn", None)
    if inspect.isfunction(function):
        return function, 0
    owner = attribute_or(callee, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, Autograd) and callee.__name__ == "apply":
        return owner.forward, int(owner.setup_context is Autograd.setup_context)
    return None, 0


def is_foreign_operator(callee: Any) -> bool:
    """Return whether a callee is an operator that another library has registered with torch, as `torch.ops.lib.op`."""
    home = str(attribute_or(callee, "__module__"))
    return home.startswith("torch._ops.") and home.split(".")[2] not in ("aten", "prims")
