"""Resetting optimizers that hide their state in another one, or count steps for a whole group."""

import copy

import pytest
import torch
from torch import nn

from fire_core import fire_, reset_optimizer_state
from fire_core.errors import FireWarning


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()


def lamb(params):
    return pytest.importorskip("timm.optim").Lamb(params, lr=0.01)


def adan(params):
    return pytest.importorskip("timm.optim").Adan(params, lr=0.01)


def schedule_free(params):
    optimizer = pytest.importorskip("schedulefree").AdamWScheduleFree(params, lr=0.01)
    optimizer.train()
    return optimizer


def timm_lookahead(params):
    return pytest.importorskip("timm.optim").Lookahead(torch.optim.AdamW(params, lr=0.01), k=3)


def torch_optimizer_lookahead(params):
    return pytest.importorskip("torch_optimizer").Lookahead(torch.optim.Adam(params, lr=0.01), k=3)


def accelerate(params):
    return pytest.importorskip("accelerate.optimizer").AcceleratedOptimizer(torch.optim.Adam(params, lr=0.01))


LOOKAHEADS = [timm_lookahead, torch_optimizer_lookahead]
COUNTING = [lamb, adan, schedule_free]


@pytest.mark.parametrize("make", [*LOOKAHEADS, *COUNTING])
def test_the_next_steps_are_those_of_a_new_optimizer(make):
    model = network()
    optimizer = make(list(model.parameters()))
    train(model, optimizer, 6)
    assert reset_optimizer_state(optimizer, model.parameters()) == 2
    fresh = copy.deepcopy(model)
    new = make(list(fresh.parameters()))
    train(model, optimizer, 6, seed=1)
    train(fresh, new, 6, seed=1)
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)


@pytest.mark.parametrize("make", LOOKAHEADS)
def test_lookahead_does_not_take_the_projection_back(make):
    model = network()
    optimizer = make(list(model.parameters()))
    train(model, optimizer, 6)
    report = fire_(model, "exact", scale="orthogonal", optimizer=optimizer)
    assert report.optimizer_states_reset == 2
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(3):  # one averaging with the slow weights
        optimizer.step()
    for p in model.parameters():
        spectrum = torch.linalg.svdvals(p.detach().double())
        torch.testing.assert_close(spectrum, torch.ones_like(spectrum), rtol=0, atol=1e-2)


@pytest.mark.parametrize("make", COUNTING)
def test_a_group_that_is_reset_in_part_is_warned_about(make):
    model = network()
    optimizer = make(list(model.parameters()))
    train(model, optimizer, 4)
    with pytest.warns(FireWarning, match=r"counts steps for a whole parameter group.*continues from step 4"):
        assert reset_optimizer_state(optimizer, [model[0].weight]) == 1
    train(model, optimizer, 1)
    with pytest.warns(FireWarning, match="counts steps"):
        report = fire_(model, exclude="1", optimizer=optimizer)
    assert report.optimizer_states_reset == 1
    assert "counts steps" in report.warnings[0]


def test_accelerate_counts_a_state_once():
    model = network()
    pytest.importorskip("accelerate").Accelerator(cpu=True)
    optimizer = accelerate(list(model.parameters()))
    train(model, optimizer, 1)
    assert reset_optimizer_state(optimizer, model.parameters()) == 2
    assert not optimizer.state


@pytest.mark.parametrize(
    ("optimizers", "params", "message"),
    [
        ("right", ["a"], "params holds 'a', which is no parameter"),
        ("right", "module", "params is a module: give its parameters"),
        ("right", "tensor", r"params is one tensor.*give a list, \[parameter\]"),
        ("module", "parameters", "expected an optimizer .* got Sequential"),
        ([1], "parameters", "expected an optimizer .* got int"),
        (None, "parameters", "expected an optimizer .* got NoneType"),
    ],
)
def test_what_is_no_optimizer_or_no_parameter_is_refused(optimizers, params, message):
    model = network()
    right = torch.optim.Adam(model.parameters())
    train(model, right, 1)
    known = {"module": model, "tensor": model[0].weight, "parameters": list(model.parameters()), "right": right}
    with pytest.raises(TypeError, match=message):
        reset_optimizer_state(
            known.get(optimizers, optimizers) if isinstance(optimizers, str) else optimizers,
            known.get(params, params) if isinstance(params, str) else params,
        )
    assert len(right.state) == 2
