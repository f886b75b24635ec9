"""Helpers of the recorders: load parts of a clone's files, build small networks, and name arrays."""

import ast
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def extract(path: Path, *names: str, **namespace: Any) -> Any:
    """Return functions or classes of a file, without running the file or its imports.

    Args:
        path: a Python file.
        names: the functions or classes; one is returned itself, several as attributes.
        namespace: the global names that they use.
    """
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)]
    definitions = [node for node in nodes if getattr(node, "name", None) in names]
    for node in definitions:
        for inner in ast.walk(node):  # annotations name types that are not imported here
            if isinstance(inner, ast.arg):
                inner.annotation = None
            if isinstance(inner, ast.FunctionDef):
                inner.returns = None
    exec(compile(ast.Module(definitions, []), str(path), "exec"), namespace)
    return SimpleNamespace(**namespace) if len(names) > 1 else namespace[names[0]]


def numbers(module: Any, prefix: str) -> Arrays:
    """Return a torch module's parameters as arrays, by their names after a prefix."""
    return {f"{prefix}{name}": p.detach().numpy().copy() for name, p in module.named_parameters()}


def stacked(record: Arrays) -> Arrays:
    """Join what was recorded at each step, as `after@3.bias`, into one array (steps, ...), as `after.bias`."""
    values_of_steps: dict[str, list[Any]] = {}
    for key, value in record.items():
        values_of_steps.setdefault(re.sub(r"@\d+", "", key), []).append(value)
    steps = {re.sub(r"@\d+", "", key) for key in record if "@" in key}
    return {key: np.stack(values) if key in steps else values[0] for key, values in values_of_steps.items()}


def perceptron(*sizes: int) -> Any:
    """Return linear layers of these sizes with ReLU between them."""
    from torch import nn

    layers: list[Any] = []
    for d_in, d_out in itertools.pairwise(sizes):
        layers += [nn.Linear(d_in, d_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
