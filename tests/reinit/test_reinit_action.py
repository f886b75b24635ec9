"""What `reinit` of a layout does, and shrink and perturb."""

import copy
import math

import pytest
import torch

from fire_core import fire_, shrink_and_perturb_
from tests.reinit.test_fire import network


def test_reinit_restores_exactly_and_counts_as_changed():
    model = network()
    init = {f"module.{name}": value for name, value in copy.deepcopy(model.state_dict()).items()}  # as saved from DDP
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3)
    conv_bias = model[0].bias.detach().clone()
    report = fire_(model, layout="dqn", init=init)
    for name in ("4.weight", "4.bias", "6.weight", "6.bias"):
        assert torch.equal(model.get_parameter(name).detach(), init[f"module.{name}"])
    assert torch.equal(model[0].bias, conv_bias)
    assert [row.action for row in report] == ["project"] + ["reinit"] * 4
    assert next(row for row in report if row.name == "4.bias").sfe == pytest.approx(20 * 0.09, rel=1e-4)


def test_reinit_refuses_initial_weights_that_are_not_finite():
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"NaN or Inf in init\['4\.weight'\]: the model is unchanged"):
        fire_(model, layout="dqn", init={**before, "4.weight": before["4.weight"] * math.nan})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_shrink_and_perturb_ends_and_errors():
    model, other = network(0), network(1)
    init = copy.deepcopy(other.state_dict())
    before = copy.deepcopy(model.state_dict())
    shrink_and_perturb_(model, init, 0.0)
    assert all(torch.equal(model.state_dict()[n], before[n]) for n in before)
    with pytest.raises(ValueError, match=r"init has no '6\.bias'"):
        shrink_and_perturb_(model, {name: t for name, t in init.items() if name != "6.bias"}, 0.5)
    assert all(torch.equal(model.state_dict()[n], before[n]) for n in before)
    shrink_and_perturb_(model, init, 1.0)
    assert all(torch.equal(p, init[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("reset_state", [True, False])
def test_shrink_and_perturb_resets_the_optimizer_s_state_as_fire_does(reset_state):
    model = network(0)
    optimizer = torch.optim.Adam(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    init = copy.deepcopy(network(1).state_dict())
    options = {} if reset_state else {"reset_state": False}
    kept = next(iter(model.parameters()))
    shrink_and_perturb_(model, init, 0.4, [kept], optimizer=optimizer, **options)
    states = [len(optimizer.state.get(p, {})) > 0 for p in model.parameters()]
    assert states == [True, *[not reset_state] * (len(states) - 1)], "the state of the weight that is kept stays"


def test_shrink_and_perturb_of_half_precision_rounds_once():
    model = network(0).bfloat16()
    init = copy.deepcopy(network(1).state_dict())
    before = copy.deepcopy(model.state_dict())
    shrink_and_perturb_(model, init, 0.8)
    for name, p in model.named_parameters():
        expected = (0.2 * before[name].float() + 0.8 * init[name].float()).bfloat16()
        assert torch.equal(p.detach(), expected)
