"""DASH: the step form against its formula, and what neither form may touch."""

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


def test_step_form_is_its_formula() -> None:
    net, alpha, rate = network(), 0.01, 0.9
    net.modules["model"][1].eval()  # in train mode a filter's gradient has no part along the filter
    moment = context(net)
    inputs, targets = next(moment.batches())
    moment.loss(inputs, targets).backward()
    expected = {}
    for name, p in net.modules["model"].named_parameters():
        W, g = p.detach().double(), p.grad.double()
        expected[name] = W.clone()
        if name in ("0.weight", "4.weight"):
            for row in range(len(W)):
                cosine = (W[row] * g[row]).sum() / (W[row].norm() * g[row].norm())
                expected[name][row] *= min(max(1 - rate * max(float(cosine) - alpha, 0), 0.5), 1)
    method = Dash(alpha=alpha, variant="step", every=2, rate=rate)
    assert method.acts_within_phases
    method.after_step(net, context(net, step=3))
    assert all(torch.equal(p, net.init["model"][n]) for n, p in net.modules["model"].named_parameters())
    method.after_step(net, moment)
    changed = 0
    for name, p in net.modules["model"].named_parameters():
        torch.testing.assert_close(p.detach().double(), expected[name], rtol=1e-6, atol=1e-7)
        changed += not torch.equal(p, net.init["model"][name])
    assert changed == 2


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
    assert not Dash().acts_within_phases


@pytest.mark.parametrize("options", [{"alpha": 2}, {"minimum": -1}, {"mode": "both"}, {"variant": "x"}, {"every": 0}])
def test_refused_options(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Dash(**options)
