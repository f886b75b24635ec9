"""Looking at a model leaves no trace: caches, history, counters, generators and weights are as they were."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

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
    """Rescales its weight in each pass, and writes to its input."""

    def beside(self, x: Tensor, k: Tensor) -> None:
        self.wqkv.weight.data.mul_(0.5)
        x.data.mul_(2)

    def state(self) -> Any:
        return self.wqkv.weight.tolist()


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", [PlainCache, History, Counting, Drawing, Writing])
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
