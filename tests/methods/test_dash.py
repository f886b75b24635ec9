"""DASH: what it may not touch; its numbers are held in tests/parity."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.methods import Context, Net
from fire_core.methods.dash import Dash


def context(net: Net, step: int = 4) -> Context:
    model = net.modules["model"]
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(8, 3, 6, 6, generator=generator), torch.arange(8) % 4) for _ in range(3)]
    return Context(1, step, generator, lambda: iter(batches), lambda x, y: F.cross_entropy(model(x), y))


def network() -> Net:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 4))
    return Net.of({"model": nn.Sequential(*layers)})


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_boundary_form_leaves_buffers_modes_gradients_and_norms(mode: str) -> None:
    net = network()
    model = net.modules["model"]
    model[1].eval()
    Dash(mode=mode).at_boundary(net, context(net))
    assert [module.training for module in model] == [True, False, True, True, True]
    for name, value in model.state_dict().items():
        if name.startswith("1."):
            assert torch.equal(value, net.init["model"][name])
        else:
            factor = value / net.init["model"][name]
            assert (factor > 0.049).all()
            assert (factor < 1.0001).all()
    assert all(p.grad is None for p in model.parameters())
