"""What the triggers measure, against the definition in float64, and when they fire."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fire_core import fire_
from fire_core.integrations.torch import FireHook
from fire_core.methods import Net
from fire_core.triggers import Dormancy, Drift, EffectiveRank, Trigger
from fire_core.triggers.activations import sampled_rows
from fire_core.triggers.measured import Measured
from fire_core.units.graph import Units, between
from tests.triggers.loops import mlp


class Given(Measured):
    """Measures what it is given, one number after the other."""

    name = "given"

    def __init__(self, values: list[float], **options: float) -> None:
        super().__init__(**options)
        self.values = list(values)

    def measure(self, net: Net) -> torch.Tensor:
        return torch.tensor(self.values.pop(0))


def fired(trigger: Measured, steps: int) -> list[int]:
    return [step for step in range(1, steps + 1) if trigger.ask(step, nn.Linear(1, 1))]


UP_AND_DOWN = [0.1, 0.4, 0.5, 0.3, 0.4, 0.19, 0.25, 0.35, 0.9]
AGAIN = [0.4, 0.1, 0.4, 0.1, 0.4, 0.1, 0.4]


@pytest.mark.parametrize(
    ("values", "options", "steps", "fires"),
    [
        (UP_AND_DOWN, {"above": 0.3, "rearm": 0.2, "every": 1}, 9, [2, 8]),
        (UP_AND_DOWN, {"above": 0.3, "rearm": 0.3, "every": 1}, 9, [2, 8]),  # 0.3 itself is not below 0.3
        ([-v for v in UP_AND_DOWN], {"below": -0.3, "rearm": -0.2, "every": 1}, 9, [2, 8]),
        (AGAIN, {"above": 0.3, "every": 1, "cooldown": 3}, 7, [1, 5]),
        ([0.1, 0.4, 0.1], {"above": 0.3, "every": 10}, 39, [20]),
        ([float("nan"), 0.4], {"above": 0.3, "every": 1}, 2, [2]),
    ],
)
def test_hysteresis_and_cooldown(values, options, steps, fires):
    trigger = Given(values, **options)
    assert fired(trigger, steps) == fires
    assert trigger.values == []


def test_what_is_done_for_others_cools_it_down_and_the_default_of_rearm():
    trigger = Given(AGAIN, above=0.3, every=1, cooldown=2)
    trigger.acted(0)
    assert fired(trigger, 7) == [3, 7]
    assert Given([], above=0.3).rearm == pytest.approx(0.27)
    assert Given([], below=0.3).rearm == pytest.approx(1 / 3)


# ----------------------------------------------------------------------------------------------- against definitions


def backward(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).square().mean().backward()


def test_dormancy_of_the_batch_that_was_trained_on():
    model, x = mlp(), torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model[0].bias[:10] = -100.0
    trigger = Dormancy(above=0.15, every=3)
    for step in range(1, 5):
        if step == 4:  # seen after the third step, the one that was due
            with torch.no_grad():
                model.eval()(torch.full((5, 8), 1e3))  # an evaluation is not looked at
            model.train()
        backward(model, x)
        firing = trigger.ask(step, model)
    with torch.no_grad():
        h1 = model[0](x).relu().double()
        h2 = model[2](model[0](x).relu()).relu().double()
    scores = [h.abs().mean(0) / h.abs().mean(0).mean() for h in (h1, h2)]
    expected = float((torch.cat(scores) <= 0.1).double().mean())
    assert expected > 0.2
    assert firing is not None
    assert firing.numbers["dormancy"] == pytest.approx(expected)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_effective_rank_of_the_features():
    model, x = mlp(), torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    trigger = EffectiveRank(below=0.999, every=2)
    for step in (1, 2, 3):
        backward(model, x)
        firing = trigger.ask(step, model)
    features = model[:4](x[::3]).detach().double()
    p = torch.linalg.svdvals(features)
    p = p / p.sum()
    expected = math.exp(float(-(p * p.clamp_min(1e-300).log()).sum())) / 24
    assert firing.numbers["effective_rank"] == pytest.approx(expected, rel=1e-5)


def test_a_probe_is_measured_at_once_in_evaluation_mode_and_leaves_no_trace():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, modes = torch.randn(32, 8), []

    def probe():
        modes.append(model[1].training)
        return model(x)

    for trigger in (Dormancy(above=0.0, every=2, rearm=0.0), EffectiveRank(below=1.0, every=2)):
        trigger.start(model, probe=probe)
        assert trigger.ask(1, model) is None
        trigger.ask(2, model)
        assert trigger.value is not None
    assert modes == [False, False]
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_drift_is_the_increase_of_dfi_for_each_singular_value():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(6, 10), nn.Linear(10, 4))
    fire_(model, "exact")
    trigger = Drift(above=0.4, every=1)
    assert trigger.ask(1, model) is None
    assert trigger.value == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.3)
    firing = trigger.ask(2, model)
    assert firing.numbers["drift"] == pytest.approx((1.3**2 - 1) ** 2, rel=1e-4), "whatever the shapes"
    assert trigger.ask(3, model) is None, "the baseline is new"
    assert trigger.value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("every", [1, 5])
def test_drift_fires_each_time_that_the_weights_have_moved_far_enough(every):
    """Also where the first measurement after an action already lies above the threshold."""
    model, trigger = mlp(), Drift(above=1e-4, every=every)
    fired = []
    for step in range(1, 41):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.01)
        if trigger.ask(step, model):
            fire_(model, "exact")
            fired.append(step)
    between = max(every, 2)  # the first step after an action gives the number from which the increase counts
    assert fired == [*range(between, 41, between)]


@pytest.mark.parametrize(
    ("side", "threshold", "rearm"),
    [("above", 2.0, 1.8), ("above", -2.0, -2.2), ("above", 0.0, 0.0), ("below", -2.0, -1.8), ("below", 0.9, 1.0)],
)
def test_the_trigger_is_armed_again_a_tenth_of_the_threshold_away(side, threshold, rearm):
    assert Measured(**{side: threshold}).rearm == pytest.approx(rearm)


def test_asks_that_lie_further_apart_than_measurements():
    model, trigger = mlp(), EffectiveRank(below=0.999, every=10)
    trigger.start(model, after=0)
    for step in (64, 128, 192):
        backward(model, torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
        firing = trigger.ask(step, model)
        assert (trigger.value is None) == (step == 64)
        assert (firing is not None) == (step == 128)
    blind = EffectiveRank(below=0.5, every=10)
    blind.start(model, after=0)
    assert blind.ask(64, model) is None
    with pytest.raises(ValueError, match="no training pass"):
        blind.ask(128, model)


def test_a_default_of_rearm_can_be_reached():
    assert EffectiveRank(below=0.95).rearm == pytest.approx(0.975)
    trigger = Given([0.1, 0.0, 0.1], above=0.0, every=1)
    assert fired(trigger, 3) == [1, 3]


# ----------------------------------------------------------------------------- batches and weights that say nothing


class Experts(nn.Module):
    """Two experts with declared units; all samples go to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[0](x) + self.experts[1](x[:0]).sum()

    def unit_graph(self) -> list[Units]:
        return [between(str(i), expert[0], expert[2]) for i, expert in enumerate(self.experts)]


@pytest.mark.parametrize("nothing", [torch.zeros(0, 8), torch.full((4, 8), torch.nan), torch.full((4, 8), torch.inf)])
@pytest.mark.parametrize("trigger", [lambda: Dormancy(0.0, every=1), lambda: EffectiveRank(1.0, every=1)])
def test_a_batch_without_finite_samples_says_nothing(trigger, nothing) -> None:
    model, watching = mlp(), trigger()
    for step in range(1, 6):
        model(nothing)
        assert watching.ask(step, model) is None
    assert math.isnan(watching.value)
    nn.init.constant_(model[0].bias[:3], -100)
    firings = []
    for step in range(6, 10):
        model(torch.randn(4, 8))
        firings.append(watching.ask(step, model))
    assert any(firings)


def test_experts_without_samples_do_not_count() -> None:
    model, trigger = Experts(), Dormancy(0.9, every=1, threshold=0.0)
    nn.init.constant_(model.experts[1][0].bias, -100)
    for step in range(1, 3):
        model(torch.randn(64, 8))
        assert trigger.ask(step, model) is None
    assert trigger.value < 0.5


def test_drift_begins_with_finite_weights() -> None:
    model, trigger = mlp(), Drift(above=1e-3, every=1)
    weight = model[0].weight
    with torch.no_grad():
        good = weight.clone()
        weight[0, 0] = torch.nan
        assert trigger.ask(1, model) is None
        weight.copy_(good)
        assert trigger.ask(2, model) is None
        weight.mul_(2)
    assert trigger.ask(3, model) is not None


def test_drift_of_a_layer_that_is_frozen_later_does_not_count() -> None:
    model, trigger = mlp(), Drift(above=1e-3, every=1)
    trigger.ask(1, model)
    trigger.ask(2, model)
    model[0].weight.requires_grad_(requires_grad=False)
    trigger.acted(2)
    trigger.ask(3, model)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert trigger.ask(4, model) is None


def test_drift_starts_again_when_weights_are_frozen_or_unfrozen() -> None:
    """The mean over other weights is another number, although no weight has moved."""
    model, trigger = mlp(), Drift(above=1e-3, every=1)
    with torch.no_grad():
        model[-1].weight.mul_(4)
    for step in (1, 2):
        assert trigger.ask(step, model) is None
    for step, trains in ((3, False), (4, True)):
        model[0].requires_grad_(requires_grad=trains)
        assert trigger.ask(step, model) is None
        assert trigger.value == 0
    model.requires_grad_(requires_grad=False)
    assert trigger.ask(5, model) is None
    assert math.isnan(trigger.value)
    model.requires_grad_(requires_grad=True)
    assert trigger.ask(6, model) is None
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert trigger.ask(7, model) is not None


@pytest.mark.parametrize("trigger", [lambda: Dormancy(0.0, every=1), lambda: EffectiveRank(1.0, every=1)])
def test_a_model_in_float64(trigger) -> None:
    model, watching = mlp().double(), trigger()
    nn.init.constant_(model[0].bias[:3], -100)
    for step in range(1, 3):
        model(torch.randn(4, 8).double())
        firing = watching.ask(step, model)
    assert firing is not None


@pytest.mark.parametrize("trigger", [lambda: Dormancy(0.9, every=10), lambda: EffectiveRank(1.0, every=10)])
def test_a_hook_that_is_removed_leaves_nothing_on_the_model(trigger: Callable[[], Trigger], tmp_path: Path) -> None:
    """Training has ended at a step after which a measurement was due."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    hook = FireHook(optimizer, model, trigger())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    hook.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    torch.save(model, tmp_path / "model.pt")


def test_rows_of_sequences_are_of_many_positions() -> None:
    """Of 256 sequences, or near to it, an even distance would take the first position alone."""
    for count in (128, 255, 256, 512):
        positions = torch.arange(64).expand(count, 64)[..., None].float()
        taken = sampled_rows(positions)
        assert taken.shape == (256, 1)
        assert len(taken.unique()) > 50
    assert len(sampled_rows(torch.zeros(100, 3))) == 100


def test_a_copy_made_while_a_measurement_is_due_does_not_count() -> None:
    """A deep copy has the hooks of its original."""
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(8, 4)
    for trigger in (Dormancy(above=0.99, every=1), EffectiveRank(below=0.01, every=1)):
        net = Net({"model": model}, {})
        trigger.start(net)
        trigger.ask(1, net)
        model(inputs)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin[0].weight.zero_()
            twin[0].bias.fill_(-1.0)
        trigger.ask(2, net)
        alone = trigger.value
        model(inputs)
        twin(inputs)
        trigger.ask(3, net)
        assert trigger.value == alone, type(trigger).__name__
        trigger.close()
