"""Parseval and L2 Init: gradients against float64 autograd, what counts and what does not."""

import pytest
import torch
from torch import Tensor, nn

from fire_core.methods import Net
from fire_core.methods.l2init import L2Init
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


def in_float64(net: Net, scale: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The definition, term by term, differentiated by autograd in double precision."""
    model = net.modules["model"].double()
    total = torch.zeros((), dtype=torch.float64)
    for layer in (model.wide, model.tall, model.twin, model.conv):
        W = layer.weight.flatten(1)
        total = total + (W @ W.T - scale * torch.eye(len(W))).square().sum()
    for norm in model.norms:
        total = total + (norm.weight.square() - scale).square().sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
    model.float()
    return total.detach(), dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_parseval_of_the_fire_paper_is_its_definition(net: Net, scale: float) -> None:
    penalty = Parseval(coef=0.7, scale=scale, variant="fire_paper").penalty(net)
    penalty.backward()
    got = {name: p.grad for name, p in net.modules["model"].named_parameters()}
    total, gradients = in_float64(net, scale)
    assert penalty.item() == pytest.approx(0.7 * total.item(), rel=1e-5)
    for name, gradient in gradients.items():
        mine = torch.zeros_like(gradient) if got[name] is None else got[name].double()
        torch.testing.assert_close(mine, 0.7 * gradient, rtol=1e-4, atol=1e-4)


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


def test_l2init_pulls_back_to_the_start(net: Net) -> None:
    L2Init(coef=0.3).penalty(net).backward()
    for name, parameter in net.modules["model"].named_parameters():
        torch.testing.assert_close(parameter.grad, 0.3 * (parameter.detach() - net.init["model"][name]))


def test_l2init_at_the_start_is_zero_and_so_is_its_gradient() -> None:
    net = Net.of({"model": Mixed()})
    penalty = L2Init().penalty(net)
    penalty.backward()
    assert penalty.item() == 0
    assert all((p.grad == 0).all() for p in net.parameters())
