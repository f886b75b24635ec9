"""FIRE's ingredients, one at a time, against their definitions."""

import copy
import math

import torch

from fire_core.methods import Context, Net
from scripts.ingredients import KeepsOptimizer, Rescales


def trained() -> tuple[Net, torch.optim.Adam, Context]:
    """A perceptron after three steps, and the moment of a boundary."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    net, optimizer = Net.of({"model": model}), torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
    return net, optimizer, Context(1, 3, torch.Generator().manual_seed(0), optimizers=[optimizer])


def weights(net: Net) -> list[torch.Tensor]:
    return [p.detach() for p in net.parameters() if p.ndim == 2]


def moments(optimizer: torch.optim.Adam) -> float:
    return sum(float(state["exp_avg"].abs().sum()) for state in optimizer.state.values() if "exp_avg" in state)


def test_everything_but_the_optimizer() -> None:
    net, optimizer, context = trained()
    before, held = copy.deepcopy(weights(net)), moments(optimizer)
    KeepsOptimizer().at_boundary(net, context)
    assert moments(optimizer) == held > 0
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(net), strict=True))


def test_the_norm_alone_is_that_of_the_isometry_and_the_shape_stays() -> None:
    net, _, context = trained()
    before = copy.deepcopy(weights(net))
    Rescales().at_boundary(net, context)
    for old, new in zip(before, weights(net), strict=True):
        assert torch.allclose(new / new.norm(), old / old.norm(), atol=1e-6)
        isometry = (
            math.sqrt(new.shape[0] / new.shape[1]) * torch.linalg.qr(torch.randn(max(new.shape), min(new.shape)))[0]
        )
        assert torch.isclose(new.norm(), isometry.norm())
