"""Small networks with known units, and a training of two phases that can be cut and resumed."""

import contextlib
import io
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods import BoundaryReport, Context, Net
from fire_core.methods.contrib.nap import NormalizeAndProject
from fire_core.units.graph import Units, between
from harness.config.build import build

PHASE = 15  # steps


class Layers(nn.Sequential):
    """Units between its linear layers."""

    def unit_graph(self) -> list[Units]:
        layers = [m for m in self if isinstance(m, nn.Linear)]
        return [between(str(i), one, two) for i, (one, two) in enumerate(itertools.pairwise(layers))]


def perceptron() -> Layers:
    return Layers(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def moment(step: int = 0, seed: int | None = None, **more: Any) -> Context:
    return Context(0, step, torch.Generator().manual_seed(step if seed is None else seed), **more)


class Network(nn.Module):
    injectable = ("head",)

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(5, 12), nn.Linear(12, 10), nn.Linear(10, 3)
        self.norm = nn.LayerNorm(12) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.norm(self.one(x)).relu()).relu())

    def unit_graph(self) -> list[Units]:
        return [between("one", self.one, self.two), between("two", self.two, self.head)]


def batches(start: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(start, start + number):
        generator = torch.Generator().manual_seed(i)
        inputs = torch.randn(4, 5, generator=generator) + 1
        yield inputs, inputs[:, :3].argmax(1)


class Training:
    """Two phases of a small network with a method, as a trainer goes through them.

    Args:
        setting: the method's options.
        checkpoint: of a training that was cut.
    """

    def __init__(self, setting: Mapping[str, Any], checkpoint: bytes | None = None) -> None:
        torch.manual_seed(0)
        self.method = build("method", setting)
        self.model = Network(norm=isinstance(self.method, NormalizeAndProject))
        self.net, self.step, self.logged = Net.of({"model": self.model}), 0, list[Any]()
        self.optimizer = self._default(self.net.parameters())
        with contextlib.suppress(AttributeError):
            self.method.check(self.net)
        if checkpoint is not None:
            state = torch.load(io.BytesIO(checkpoint), weights_only=True)
            self.step, self.logged = state["step"], state["logged"]
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
            self.model.load_state_dict(state["model"])
            self.optimizer = self.method.optimizer(self.net, self._default)
            self.optimizer.load_state_dict(state["optimizer"])

    def checkpoint(self) -> bytes:
        state = {name: getattr(self, name).state_dict() for name in ("method", "model", "optimizer")}
        torch.save(state | {"step": self.step, "logged": self.logged}, file := io.BytesIO())
        return file.getvalue()

    def run(self, until: int = 2 * PHASE) -> list[Any]:
        """The weights at that step, and all that was logged."""
        while self.step < until:
            if self.step % PHASE == 0:
                if self.step:
                    done = self.method.at_boundary(self.net, self._context())
                    self.logged.append(done.numbers if isinstance(done, BoundaryReport) else done)
                self.optimizer = self.method.optimizer(self.net, self._default)
            with self.method.watch(self.net):
                rest = PHASE - self.step % PHASE
                for inputs, targets in itertools.islice(batches(PHASE - rest, rest), until - self.step):
                    self._train_step(inputs, targets)
        return [*(p.detach() for p in self.net.parameters()), self.logged]

    def _train_step(self, inputs: Tensor, targets: Tensor) -> None:
        torch.manual_seed(self.step)
        self.optimizer.zero_grad()
        loss, penalty = F.cross_entropy(self.model(inputs), targets), self.method.penalty(self.net)
        (loss if penalty is None else loss + penalty).backward()
        context = self._context(loss.detach())
        self.method.before_step(self.net, context)
        self.optimizer.step()
        self.method.after_step(self.net, context)
        self.step += 1
        self.logged.append([p.sum().item() for p in self.net.parameters()])
        if self.step % 5 == 0:
            self.logged.append(self.method.after_epoch(self.net, self._context()))

    def _context(self, loss: Tensor | None = None) -> Context:
        return Context(
            self.step // PHASE, self.step, torch.Generator().manual_seed(self.step), lambda: batches(0, 4),
            lambda x, y: F.cross_entropy(self.model(x), y), getattr(self.optimizer, "parts", [self.optimizer]),
            chunks=lambda: (batches(i, 2) for i in (0, 2)), step_loss=loss,
            new_networks=self._new_networks,
        )  # fmt: skip

    def _new_networks(self) -> dict[str, dict[str, Tensor]]:
        with torch.random.fork_rng():
            torch.manual_seed(self.step)
            return {"model": Network(norm=isinstance(self.method, NormalizeAndProject)).state_dict()}

    @staticmethod
    def _default(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.02)


def trained(setting: Mapping[str, Any], cut: int | None = None) -> list[Any]:
    """The last weights and what was logged; `cut`: the training is given up there, and goes on in new objects."""
    training = Training(setting)
    if cut is not None:
        training.run(cut)
        training = Training(setting, training.checkpoint())
    return training.run()


def differ(one: list[Any], other: list[Any]) -> bool:
    return repr(one[-1]) != repr(other[-1]) or any(
        not torch.equal(a, b) for a, b in itertools.zip_longest(one[:-1], other[:-1])
    )
