"""What recorders share: parts of a clone's files, small networks, arrays by name."""

import ast
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def extract(path: Path, *names: str, **namespace: Any) -> Any:
    """Functions or classes of a file, wherever they stand in it, without the file's imports."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)]
    found = [node for node in nodes if getattr(node, "name", None) in names]
    for node in found:
        for inner in ast.walk(node):  # annotations name types that are not imported here
            if isinstance(inner, ast.arg):
                inner.annotation = None
            if isinstance(inner, ast.FunctionDef):
                inner.returns = None
    exec(compile(ast.Module(found, []), str(path), "exec"), namespace)
    return SimpleNamespace(**namespace) if len(names) > 1 else namespace[names[0]]


def numbers(module: Any, prefix: str) -> Arrays:
    """A torch module's parameters as arrays."""
    return {f"{prefix}{name}": p.detach().numpy().copy() for name, p in module.named_parameters()}


def stacked(record: Arrays) -> Arrays:
    """What is recorded step by step, under keys such as `after@3.bias`, as one array (steps, ...) `after.bias`."""
    together: dict[str, list[Any]] = {}
    for key, value in record.items():
        together.setdefault(re.sub(r"@\d+", "", key), []).append(value)
    steps = {re.sub(r"@\d+", "", key) for key in record if "@" in key}
    return {key: np.stack(values) if key in steps else values[0] for key, values in together.items()}


def perceptron(*sizes: int) -> Any:
    """Linear layers with ReLU between."""
    from torch import nn

    layers: list[Any] = []
    for one, two in itertools.pairwise(sizes):
        layers += [nn.Linear(one, two), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
