"""AdamO against its formula, with autograd's gradient of the penalty and Adam written out."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fire_core.methods import Net
from fire_core.methods.contrib.adamo import AdamO


class Network(nn.Module):
    """Wide, tall and square matrices, a convolution; norm, embedding and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 5, 3), nn.LayerNorm(7)
        self.wide, self.tall, self.square = nn.Linear(9, 4), nn.Linear(3, 8), nn.Linear(6, 6)
        self.table = nn.Embedding(4, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)


def penalty(model: Network) -> Tensor:
    layers = [model.conv.weight.flatten(1), model.wide.weight, model.tall.weight, model.square.weight]
    total = torch.zeros((), dtype=torch.float64)
    for W in layers:
        gram = W.T @ W if W.shape[0] >= W.shape[1] else W @ W.T
        total = total + (gram - torch.eye(len(gram))).square().sum()
    return total


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_steps_are_those_of_the_formula(memory: torch.memory_format) -> None:
    torch.manual_seed(0)
    lr, coef, (b1, b2), eps = 0.01, 0.3, (0.8, 0.95), 1e-3
    model = Network().double().to(memory_format=memory)
    other = copy.deepcopy(model)
    optimizer = AdamO(lr, coef, (b1, b2), eps).optimizer(Net({"m": model}, {}), torch.optim.SGD)
    m, v = ({name: torch.zeros_like(p) for name, p in other.named_parameters()} for _ in range(2))
    for t in range(1, 5):
        g = {name: torch.randn_like(p) for name, p in other.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.grad = g[name].clone()
        optimizer.step()
        pulls = torch.autograd.grad(penalty(other), list(other.parameters()), allow_unused=True)
        with torch.no_grad():
            for (name, theta), r in zip(other.named_parameters(), pulls, strict=True):
                m[name] = b1 * m[name] + (1 - b1) * g[name]
                v[name] = b2 * v[name] + (1 - b2) * g[name] ** 2
                theta -= lr * (m[name] / (1 - b1**t)) / ((v[name] / (1 - b2**t)).sqrt() + eps)
                theta -= 0 if r is None else lr * coef * r
        for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12, msg=name)
