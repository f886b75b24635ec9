"""Fusion with a base model's weights, against its formula."""

import pytest
import torch
from torch import nn

from fire_core.methods import Fuse, Net
from tests.methods.small import moment


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.norm = nn.Embedding(4, 3), nn.Linear(3, 5), nn.BatchNorm1d(5)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.table.weight


@pytest.mark.parametrize("keep", [0.0, 0.4, 0.75])
def test_every_parameter_moves_towards_the_initial_one_and_buffers_stay(keep: float) -> None:
    torch.manual_seed(0)
    model = Network()
    net, optimizer = Net.of({"model": model}), torch.optim.Adam(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    model.norm.running_mean += 3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Fuse(keep).at_boundary(net, moment(optimizers=[optimizer]))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, value in model.state_dict().items():
        fused = keep * before[name] + (1 - keep) * net.init["model"][name] if name in parameters else before[name]
        torch.testing.assert_close(value, fused, msg=name)
    assert not optimizer.state
    assert model.head.weight is model.table.weight
