"""Self-normalised resets: a silent unit in a real network; the bookkeeping is held in tests/parity."""

import torch

from fire_core.methods import Net
from fire_core.methods.snr import SelfNormalizedResets
from tests.methods.small import moment, perceptron


def test_a_unit_that_falls_silent_is_recycled() -> None:
    torch.manual_seed(0)
    model = perceptron()
    net = Net.of({"model": model})
    adam = torch.optim.Adam(model.parameters(), lr=0)
    method = SelfNormalizedResets(max_age=200)
    with torch.no_grad():
        model[0].bias[3] = -100
    x = torch.randn(64, 5)
    expected = model(x)
    with method.watch(net):
        for step in range(4):
            adam.zero_grad()
            model(x).square().sum().backward()
            adam.step()
            method.after_step(net, moment(step, optimizers=[adam]))
    assert model[0].bias[3] > -1
    assert (model[2].weight[:, 3] == 0).all()
    torch.testing.assert_close(model(x), expected)  # it had said nothing, and still says nothing
    others = [i for i in range(8) if i != 3]
    assert torch.equal(model[0].weight[others], net.init["model"]["0.weight"][others])
    assert not any(module._forward_pre_hooks for module in model.modules())
