"""Whether an optimizer is as new: what is left of training is named, and first values that are no zeros are known."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from fire_core import assert_fresh, is_fresh, reset_optimizer_state

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2]),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.02),
    "SGD": lambda p: torch.optim.SGD(p, momentum=0.9),
}


def model_and(name: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    return model, OPTIMIZERS[name](list(model.parameters()))


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_new_then_trained_then_reset(name: str) -> None:
    model, optimizer = model_and(name)
    assert is_fresh(optimizer), str(is_fresh(optimizer))
    train(model, optimizer)
    before = [p.clone() for p in model.parameters()]
    freshness = is_fresh(optimizer)
    assert not freshness
    assert name in str(freshness)
    with pytest.raises(AssertionError, match=f"not as new:\n.*{name}"):
        assert_fresh(optimizer)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)), (
        "looking changes nothing"
    )
    reset_optimizer_state(optimizer, model.parameters())
    assert_fresh(optimizer)


def test_moments_without_their_counter_are_no_new_optimizer() -> None:
    """The fault of a framework that zeroed moments and kept the counter: the next update is 1.34 times too small."""
    model, optimizer = model_and("Adam")
    train(model, optimizer, 1)
    for state in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            state[key].zero_()
    problems = is_fresh(optimizer).problems
    assert any("step of a weight" in line for line in problems), problems
    assert any("another step" in line for line in problems), problems


def test_an_option_is_no_record_of_training() -> None:
    model, optimizer = model_and("AdamW")
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.param_groups[0]["initial_lr"] = 1e-3
    assert_fresh(optimizer, model)


def test_a_group_s_own_counter_is_seen() -> None:
    class Counting(torch.optim.SGD):
        def __init__(self, params: list[nn.Parameter]) -> None:
            super().__init__(params, lr=0.1)
            for group in self.param_groups:
                group["k"] = 0

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            super().step()
            for group in self.param_groups:
                group["k"] += 1

    model = nn.Linear(4, 3)
    optimizer = Counting(list(model.parameters()))
    assert_fresh(optimizer)
    train(model, optimizer, 1)
    assert any("k of a group" in line for line in is_fresh(optimizer).problems)


def test_a_master_that_is_not_its_weight_is_named() -> None:
    model = nn.Linear(4, 3, bias=False).bfloat16()
    copy = model.weight.detach().float().requires_grad_()
    optimizer = torch.optim.AdamW([copy])
    masters = {"weight": copy}
    with pytest.raises(ValueError, match="give model= too"):
        is_fresh(optimizer, masters=masters)
    assert_fresh(optimizer, model, masters)
    with torch.no_grad():
        copy += 1.0
    assert "weight" in str(is_fresh(optimizer, model, masters))


def test_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError):
        is_fresh(nn.Linear(2, 2))  # type: ignore[arg-type]
