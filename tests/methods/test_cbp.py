"""Continual backpropagation against the definition in float64, unit by unit."""

from typing import Any

import numpy as np
import pytest
import torch

from fire_core.methods import Net
from fire_core.methods.cbp import ContinualBackprop, outgoing
from fire_core.units.find import unit_graph
from tests.methods.small import moment, perceptron
from tests.units.test_graph import MODELS


class Definition:
    """The docstring's update, in numpy, with nothing batched, counted or postponed."""

    def __init__(self, units: int, rate: float, maturity: int, decay: float) -> None:
        self.rate, self.maturity, self.decay = rate, maturity, decay
        self.age, self.use, self.debt = np.zeros(units), np.zeros(units), 0.0

    def step(self, activity: np.ndarray, out: np.ndarray) -> set[int]:
        self.age += 1
        self.use = self.decay * self.use + (1 - self.decay) * activity * out
        mature = [i for i in range(len(self.age)) if self.age[i] > self.maturity]
        self.debt += self.rate * len(mature)
        utility = self.use / (1 - self.decay**self.age)
        replaced = sorted(mature, key=lambda i: utility[i])[: int(self.debt)]
        self.debt -= len(replaced)
        for i in replaced:
            self.age[i] = self.use[i] = 0
        return set(replaced)


def test_every_step_is_the_definition() -> None:
    torch.manual_seed(0)
    model = perceptron()
    net = Net.of({"model": model})
    net.init["model"] = {name: torch.randn_like(value) for name, value in net.init["model"].items()}
    options: dict[str, Any] = {"rate": 0.06, "maturity": 4, "decay": 0.9}
    method = ContinualBackprop(**options)
    truths = [Definition(8, **options), Definition(6, **options)]
    replaced = 0
    with method.watch(net):
        for step in range(40):
            x = torch.randn(16, 5)
            model(x)
            with torch.no_grad():
                hidden = [model[:2](x), model[:4](x)]
            before = [layer.weight.detach().clone() for layer in (model[0], model[2])]
            out = [model[i].weight.detach().abs().mean(0).double().numpy() for i in (2, 4)]
            expected = [
                truth.step(h.abs().double().mean(0).numpy(), w) for truth, h, w in zip(truths, hidden, out, strict=True)
            ]
            method.after_step(net, moment(step))
            for layer, old, rows in zip((model[0], model[2]), before, expected, strict=True):
                moved = (layer.weight != old).any(1).nonzero().flatten().tolist()
                if layer is model[0] or not expected[0]:
                    assert set(moved) == rows, step
            replaced += sum(map(len, expected))
    assert replaced > 10
    ages = np.concatenate([truth.age for truth in truths])
    np.testing.assert_array_equal(method.state["age"].numpy(), ages)
    uses = np.concatenate([truth.use for truth in truths])
    np.testing.assert_allclose(method.state["utility"].numpy(), uses, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_outgoing_weights_through_any_graph(name: str) -> None:
    """Mean |weight| over all that read a unit, gathered number by number."""
    torch.manual_seed(0)
    model = MODELS[name]()
    for units in unit_graph({"model": model}):
        for j in range(units.count):
            rows = []
            for consumer in units.consumers:
                w = consumer.layer.weight.detach().double()
                columns = [j] if consumer.columns is None else consumer.columns[j].tolist()
                rows.append(torch.stack([w[:, c].abs().reshape(len(w), -1).mean(1) for c in columns]).mean(0))
            assert outgoing(units)[j].item() == pytest.approx(torch.cat(rows).mean().item(), rel=1e-5)


def test_more_than_are_mature_are_never_asked_for() -> None:
    """The reference can crash here (docs/paper.md, A10)."""
    model = perceptron()
    net = Net.of({"model": model})
    method = ContinualBackprop(rate=0.9, maturity=2)
    with method.watch(net):
        for step in range(12):
            model(torch.randn(4, 5))
            method.after_step(net, moment(step))
    mature = [int((age > 2).sum()) for age in method.state["age"].split([8, 6])]
    assert mature == method.state["mature"]
