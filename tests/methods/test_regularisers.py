"""Parseval and L2 Init: gradients against float64 autograd, what counts and what does not."""

import pytest
import torch
from torch import nn

from fire_core.methods import Net
from fire_core.methods.parseval import Parseval, weights


class Mixed(nn.Module):
    """Wide, tall, square, convolutional and grouped weights, norms, an embedding, a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tall, self.twin = nn.Linear(7, 3), nn.Linear(3, 7), nn.Linear(3, 7)
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.LayerNorm(3), nn.GroupNorm(2, 6)])
        self.embedding = nn.Embedding(5, 3)
        self.again = self.wide
        self.free = nn.Parameter(torch.randn(2, 3))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    net = Net.of({"model": Mixed()})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    return net


def test_shared_weights_count_once(net: Net) -> None:
    model = net.modules["model"]
    assert sum(w is model.wide.weight for w in weights(net)) == 1
    assert not any(w is model.embedding.weight for w in weights(net))


def test_parseval_ends_at_isometries() -> None:
    torch.manual_seed(0)
    net = Net.of({"model": nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 9))})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(800):
        optimizer.zero_grad()
        Parseval(coef=1.0, variant="fire_paper").penalty(net).backward()
        optimizer.step()
    wide, tall = (layer.weight.detach() for layer in net.modules["model"])
    torch.testing.assert_close(wide @ wide.T, torch.eye(4), rtol=0, atol=1e-3)
    torch.testing.assert_close(tall.T @ tall, torch.eye(4), rtol=0, atol=1e-3)
