"""shrink_and_perturb_ on models."""

import copy

import pytest
import torch

from fire_core import shrink_and_perturb_
from tests.reinit.test_fire import network


def test_shrink_and_perturb_ends_and_errors():
    model, other = network(0), network(1)
    init = copy.deepcopy(other.state_dict())
    before = copy.deepcopy(model.state_dict())
    shrink_and_perturb_(model, init, 0.0)
    assert all(torch.equal(model.state_dict()[n], before[n]) for n in before)
    with pytest.raises(ValueError, match=r"coef=1\.2"):
        shrink_and_perturb_(model, init, 1.2)
    with pytest.raises(ValueError, match=r"init has no '6\.bias'"):
        shrink_and_perturb_(model, {name: t for name, t in init.items() if name != "6.bias"}, 0.5)
    assert all(torch.equal(model.state_dict()[n], before[n]) for n in before)
    shrink_and_perturb_(model, init, 1.0)
    assert all(torch.equal(p, init[n]) for n, p in model.named_parameters())


def test_shrink_and_perturb_of_half_precision_rounds_once():
    model = network(0).bfloat16()
    init = copy.deepcopy(network(1).state_dict())
    before = copy.deepcopy(model.state_dict())
    shrink_and_perturb_(model, init, 0.8)
    for name, p in model.named_parameters():
        expected = (0.2 * before[name].float() + 0.8 * init[name].float()).bfloat16()
        assert torch.equal(p.detach(), expected)
