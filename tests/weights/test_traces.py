"""Looking at a model leaves no trace: caches, history, counters, generators and weights are as they were."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core import matrices


class Attention(nn.Module):
    """A fused projection with a neutral cut, whose forward pass does what the subclass says beside its work."""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(16, 48)

    def beside(self, x: Tensor, k: Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.wqkv(x).chunk(3, -1)
        self.beside(x, k)
        return F.scaled_dot_product_attention(q, k, v)


class PlainCache(Attention):
    """As Llama's reference code: a plain tensor into which a pass writes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.zeros(4, 64, 16)

    def beside(self, x: Tensor, k: Tensor) -> None:
        self.cache[: len(k), : k.shape[1]] = k

    def state(self) -> Any:
        return self.cache.tolist(), self.cache.grad_fn is None


class History(Attention):
    """Keys of earlier passes, with their history, in a list within a mapping and in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.past: dict[str, list[Tensor]] = {"keys": []}
        self.last: deque[Tensor] = deque(maxlen=3)

    def beside(self, x: Tensor, k: Tensor) -> None:
        self.past["keys"].append(k)
        self.last.append(k)

    def state(self) -> Any:
        return len(self.past["keys"]), len(self.last)


@dataclass
class Counts:
    passes: int = 0
    shapes: list[int] = field(default_factory=list)


class Counting(Attention):
    """Counters in objects, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.counts = SimpleNamespace(passes=0), Counts()
        self.register_buffer("steps", torch.zeros(()))

    def beside(self, x: Tensor, k: Tensor) -> None:
        self.seen.passes += 1
        self.counts.passes += 1
        self.counts.shapes.append(len(x))
        self.steps.add_(1)

    def state(self) -> Any:
        return self.seen.passes, self.counts, float(self.steps)


class Drawing(Attention):
    """Generators of its own and of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(0)
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)

    def beside(self, x: Tensor, k: Tensor) -> None:
        torch.randn(3, generator=self.noise)
        torch.randn(3)
        self.python.random(), self.numpy.random(), random.random(), np.random.random()  # noqa: NPY002

    def state(self) -> Any:
        own = self.noise.get_state().tolist(), self.python.getstate(), self.numpy.bit_generator.state
        return own, random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()  # noqa: NPY002


class Writing(Attention):
    """Rescales its biases in each pass, and writes to its input."""

    def beside(self, x: Tensor, k: Tensor) -> None:
        self.wqkv.bias.data.mul_(0.5)
        x.data.mul_(2)

    def state(self) -> Any:
        return self.wqkv.bias.tolist()


# ------------------------------------------------------------------------------------------ state outside of a module

PASSES = 0
CACHE: dict[str, Tensor] = {}
BUFFER = torch.zeros(4, 64, 16)
NOISE = torch.Generator().manual_seed(0)
NUMBERS = itertools.count(5)
COUNTS = Counts()


class Totals:
    """A class that is nothing but a place for numbers."""

    passes = 0
    last: ClassVar[list[int]] = []


class ClassCounter(Attention):
    """Attributes of its own class, of an ancestor, of another class, and one that the first pass makes."""

    calls = 0
    shapes: ClassVar[list[int]] = []
    totals = Totals

    def beside(self, x: Tensor, k: Tensor) -> None:
        type(self).calls += 1
        self.shapes.append(len(x))
        self.totals.passes += 1
        Totals.last.append(1)
        ClassCounter.made = True  # type: ignore[attr-defined]

    def state(self) -> Any:
        return ClassCounter.calls, self.shapes, Totals.passes, Totals.last, hasattr(ClassCounter, "made")


class Globals(Attention):
    """Globals that are assigned, filled, written to in place, drawn from, and one that a helper makes."""

    def beside(self, x: Tensor, k: Tensor) -> None:
        global PASSES
        PASSES += 1
        BUFFER[: len(k), : k.shape[1]] = k
        torch.randn(3, generator=NOISE)
        next(NUMBERS)
        COUNTS.passes += 1
        remember(k)

    def state(self) -> Any:
        seen = PASSES, [*CACHE], BUFFER.tolist(), BUFFER.grad_fn is None, repr(NUMBERS), copy.copy(COUNTS)
        return *seen, NOISE.get_state().tolist(), "MADE" in globals()


def remember(k: Tensor) -> None:
    global MADE
    MADE = True
    CACHE["k"] = k


def closure() -> tuple[Callable[[Tensor], None], Callable[[], Any]]:
    passes, seen = 0, [torch.zeros(3)]

    def count(k: Tensor) -> None:
        nonlocal passes
        passes += 1
        seen[0].add_(1)
        seen.append(k)

    return count, lambda: (passes, len(seen), seen[0].tolist())


class Shared(Attention):
    """A list and a number that a closure and other layers share, the default of an argument, and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.told = closure()

    def beside(self, x: Tensor, k: Tensor) -> None:
        self.count(k)
        self.note(k)
        self.scale(len(x))
        table(k.shape[1])

    def note(self, k: Tensor, past: list[Tensor] = []) -> None:  # noqa: B006
        past.append(k)

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def scale(self, length: int) -> float:
        return float(length)

    def state(self) -> Any:
        defaults: Any = Shared.note.__defaults__
        return self.told(), len(defaults[0]), Shared.scale.cache_info().currsize, table.cache_info().currsize


class Answering:
    """An object that has every attribute, a function that has strange ones: neither stops a pass."""

    def __getattr__(self, name: str) -> Any:
        return Answering()

    def __call__(self, *args: Any) -> float:
        return 1.0


def strange(k: Tensor) -> None:
    return None


strange.args = strange.func = print  # type: ignore[attr-defined]
ANSWERS = Answering()


class Strange(Attention):
    def beside(self, x: Tensor, k: Tensor) -> None:
        strange(k)
        ANSWERS.anything(k)

    def state(self) -> Any:
        return None


@functools.cache
def table(length: int) -> Tensor:
    return torch.arange(length)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "kind", [PlainCache, History, Counting, Drawing, Writing, ClassCounter, Globals, Shared, Strange]
)
def test_matrices_only_looks(kind: Callable[[], Any], given: bool) -> None:
    torch.manual_seed(0)
    model = kind()
    if kind is History:
        model(torch.randn(2, 5, 16))  # tensors with a history, which no plain copy takes
    example = torch.randn(2, 5, 16)
    before, inputs = copy.deepcopy(model.state()), example.clone()
    found = matrices(model, **({"example": example} if given else {}))
    assert model.state() == before
    assert torch.equal(example, inputs)
    assert [m.shape for m in found] == [(16, 16)] * 3  # the pass was made
