"""Reading a model takes time in proportion to its layers: lines that the reader runs are counted, no seconds."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch import nn

import fire_core.weights
from fire_core import matrices
from fire_core.weights.topology import prefixes

ROOM = str(Path(fire_core.weights.__file__).parent)


def visits(model: nn.Module) -> int:
    """How many lines of `fire_core.weights` run, and how many children of modules it looks at."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        name = frame.f_code.co_filename
        if not name.startswith(ROOM) and frame.f_code.co_name not in ("named_children", "named_modules"):
            return None
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        matrices(model)
    finally:
        sys.settrace(before)
    return count


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


class Wide(nn.Module):
    """Many layers that one module holds by name."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for i in range(count):
            self.add_module(f"layer{i}", nn.Linear(4, 8 if i % 2 else 4))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "layers in a row": lambda n: nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]),
    "experts": lambda n: nn.ModuleDict(
        {"experts": nn.ModuleList([expert() for _ in range(n // 2)]), "gate": nn.Linear(4, n // 2)}
    ),
    "layers of one module": Wide,
    "gated layers in a row": lambda n: nn.Sequential(*[nn.Sequential(nn.Linear(4, 8), nn.GLU()) for _ in range(n)]),
    "attentions": lambda n: nn.ModuleList([nn.MultiheadAttention(4, 2) for _ in range(n // 2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_twice_the_layers_take_twice_the_visits(name):
    few, many = (visits(MODELS[name](count)) for count in (256, 512))
    assert few > 256
    assert many < 2.2 * few


def test_prefixes_of_a_name():
    assert list(prefixes(["a.b.weight"])) == ["a", "a.b", "a.b.weight"]
