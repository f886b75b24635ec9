"""The gap between an aged and a fresh network: by hand, on a network that has lost plasticity, and what is refused."""

import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import nn

from fire_core import fire_, plasticity_gap
from fire_core.gap import default_loss


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def memorise(model: nn.Module, tasks: int, steps: int = 150) -> None:
    """Train on random labels, newly drawn for each task."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(tasks):
        inputs, labels = torch.randn(256, 16), torch.randint(10, (256,))
        for _ in range(steps):
            optimizer.zero_grad()
            default_loss(model, (inputs, labels)).backward()
            optimizer.step()


def data(count: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(32, 16), torch.randint(10, (32,))) for _ in range(count)]


class Weight(nn.Module):
    """One weight, whose loss is its square over two."""

    def __init__(self, value: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1) + 1 if value is None else torch.tensor([value]))


def square(model: nn.Module, batch: object) -> torch.Tensor:
    return sum(p.square().sum() for p in model.parameters()) / torch.tensor(2.0)


def test_by_hand() -> None:
    """SGD multiplies the weight by 1 - rate at each step."""
    seen: list[Weight] = []

    def made() -> Weight:
        seen.append(Weight())
        return copy.deepcopy(seen[-1])

    found = plasticity_gap(
        Weight(10.0), made, [0, 0], 3, loss=square, optimizer=lambda p: torch.optim.SGD(p, lr=0.5), draws=4
    )
    factor = 0.5 ** (2 * 3) / 2
    assert found.aged == pytest.approx([100 * factor] * 4)
    assert found.fresh == pytest.approx([w.weight.item() ** 2 * factor for w in seen])
    gaps = torch.tensor(found.aged) - torch.tensor(found.fresh)
    half = 3.182 * gaps.std().item() * math.sqrt(1 + 1 / 4)
    assert (found.gap, found.low, found.high) == pytest.approx(
        [gaps.mean().item(), gaps.mean().item() - half, gaps.mean().item() + half], rel=1e-5
    )


def test_it_sees_the_loss_of_plasticity_and_what_fire_gives_back() -> None:
    torch.manual_seed(0)
    aged = network()
    memorise(aged, tasks=12)
    batches, before = data(), copy.deepcopy(aged.state_dict())
    gap = functools.partial(plasticity_gap, fresh=network, batches=batches, steps=100, draws=3)
    state = torch.get_rng_state()
    lost = gap(aged)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in aged.state_dict().items())
    assert lost.lost
    assert "plasticity is lost" in str(lost)
    fire_(aged)
    assert gap(aged).gap < lost.gap / 2
    none = gap(network())
    assert none.low < 0 < none.high
    assert not none.lost


def test_a_network_that_has_lost_nothing_is_seldom_called_lost() -> None:
    """Where aged and fresh networks come from one distribution, 2.5 % are above the interval, however many draws."""
    torch.manual_seed(77)  # no seed of a draw
    options = {"batches": [0], "steps": 1, "loss": lambda model, _: model.weight.sum()}
    for draws in (3, 20):
        gaps = [
            plasticity_gap(
                Weight(torch.randn(()).item()),
                lambda: Weight(torch.randn(()).item()),
                optimizer=lambda p: torch.optim.SGD(p, lr=1e-3),
                draws=draws,
                seed=seed,
                **options,
            )
            for seed in range(400)
        ]
        lost = sum(gap.lost for gap in gaps) / len(gaps)
        ahead = sum(gap.high < 0 for gap in gaps) / len(gaps)
        assert 0.005 < lost < 0.05
        assert 0.005 < ahead < 0.05


def test_both_train_on_the_same_batches_in_the_same_order() -> None:
    seen: list[int] = []

    def loss(model: nn.Module, batch: int) -> torch.Tensor:
        if model.training:
            seen.append(batch)
        return square(model, batch)

    plasticity_gap(
        Weight(3.0), Weight, [0, 1, 2], 7, loss=loss, optimizer=functools.partial(torch.optim.SGD, lr=0.1), draws=2
    )
    trainings = [seen[i : i + 7] for i in range(0, 28, 7)]
    assert trainings[0] == trainings[1]
    assert trainings[2] == trainings[3]
    assert trainings[0] != trainings[2]
    assert all(sorted(run[:3]) == sorted(run[3:6]) == [0, 1, 2] for run in trainings)


def to_eval(model: nn.Module, batch: object) -> torch.Tensor:
    return square(model.eval(), batch)


class IgnoresItsClosure(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()


one = Weight(1.0)


def square_of_one(model: nn.Module, batch: object) -> torch.Tensor:
    """A loss of another network than its argument."""
    return one.weight.square().sum()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"fresh": network}, "of another shape: 0.bias"),
        ({"fresh": lambda: nn.LazyLinear(2)}, "weight has no shape yet: run the lazy network once"),
        ({"fresh": lambda: one}, "the aged network's own weights"),
        ({"fresh": lambda: Weight(1.0)}, "the aged network's own weights"),
        ({"fresh": lambda: Weight(2.0)}, "the same weights twice"),
        ({"batches": iter([0, 1])}, "must be a list"),
        ({"batches": []}, "must be a list"),
        ({"loss": to_eval}, "changes the network's mode"),
        ({"loss": lambda model, batch: square(model, batch) * math.nan}, "a loss of nan"),
        ({"optimizer": IgnoresItsClosure}, "takes a closure and does not call it, so that nothing would be trained"),
        ({"optimizer": lambda p: [torch.optim.SGD(p)]}, "optimizer makes a list: it must make one optimizer"),
        ({"optimizer": lambda p: torch.optim.SGD(one.parameters(), lr=0.1)}, "parameters of another network"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.0)}, "optimizer has a learning rate of 0"),
        ({"loss": square_of_one}, "the loss reaches no weight of the network"),
        ({"loss": lambda model, batch: square(model, batch).detach()}, "the loss has no gradient"),
        ({"loss": default_loss, "batches": [(0, 1, 2)]}, "a batch is a tuple of 3: only .* give loss="),
        ({"loss": default_loss, "batches": [torch.ones(3)]}, "a batch is a Tensor: only .* give loss="),
        ({"draws": 1}, "draws"),
        ({"steps": 0}, "steps"),
    ],
)
def test_what_would_compare_something_else_is_refused(changed: dict[str, Any], says: str) -> None:
    options: dict[str, Any] = {"fresh": Weight, "batches": [0], "steps": 2, "loss": square} | changed
    gradient = one.weight.grad = torch.ones(1)
    with pytest.raises(ValueError, match=says):
        plasticity_gap(one, **options)
    assert one.weight.grad is gradient
    assert (float(one.weight.detach()), float(gradient)) == (1.0, 1.0)


def test_a_network_that_has_no_gradient_any_more_has_lost_plasticity() -> None:
    """Its weights do not change, which is what the measurement is for."""
    aged = network()
    with torch.no_grad():
        for layer in (aged[0], aged[2]):
            layer.bias.fill_(-100.0)  # type: ignore[union-attr]
        aged[4].bias[0] = 5.0  # type: ignore[index, union-attr]
    for p in (*aged[4].parameters(),):
        p.requires_grad_(False)

    def fresh() -> nn.Module:
        new = network()
        for p in (*new[4].parameters(),):
            p.requires_grad_(False)
        return new

    assert plasticity_gap(aged, fresh=fresh, batches=data(2), steps=60, draws=3).lost


class WritesToItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.inside(x.div_(2.0))
        return outputs


def test_a_network_that_writes_to_its_input_changes_no_batch() -> None:
    """Else the aged network, which trains first, would see other inputs than the fresh one."""
    batches = data(2)
    before = copy.deepcopy(batches)
    plasticity_gap(WritesToItsInput(), fresh=WritesToItsInput, batches=batches, steps=4, draws=2)
    assert all(torch.equal(x, y) for x, y in zip(sum(batches, ()), sum(before, ()), strict=True))


def test_batches_that_another_network_has_made_and_a_call_in_inference_mode() -> None:
    body = nn.Linear(16, 16)
    batches = [(body(inputs), labels) for inputs, labels in data(2)]
    plain = plasticity_gap(network(), fresh=network, batches=batches, steps=4, draws=2)
    assert body.weight.grad is None
    with torch.inference_mode():
        inside = plasticity_gap(network(), fresh=network, batches=batches, steps=4, draws=2)
    assert inside.fresh == plain.fresh


def test_generators_of_other_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` seeds every GPU of the machine, whose state nobody would give back."""

    def refuse(seed: int) -> None:
        raise AssertionError("all GPUs are seeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    model, batches = network(), data()
    state = torch.get_rng_state()
    plasticity_gap(model, fresh=network, batches=batches, steps=2, draws=2)
    assert torch.equal(torch.get_rng_state(), state)
