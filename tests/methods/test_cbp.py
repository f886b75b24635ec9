"""Continual backpropagation: outgoing weights through any graph; which units it replaces is held in tests/parity."""

import pytest
import torch

from fire_core.methods import Net
from fire_core.methods.cbp import ContinualBackprop, mean_outgoing_weight
from fire_core.units.trace import unit_graph
from tests.methods.small import moment, perceptron
from tests.units.test_graph import MODELS


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
            assert mean_outgoing_weight(units)[j].item() == pytest.approx(torch.cat(rows).mean().item(), rel=1e-5)


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
