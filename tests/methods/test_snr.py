"""Self-normalised resets: bookkeeping against plain lists, and a silent unit in a real network."""

import random

import pytest
import torch

from fire_core.methods import Context, Net
from fire_core.methods.snr import SelfNormalizedResets, Silences
from tests.methods.test_cbp import Perceptron


class Lists:
    """One unit, with every silence in a list and the percentile by counting."""

    def __init__(self, percentile: float, every: int, max_age: int, growth: float) -> None:
        self.percentile, self.every, self.max_age, self.growth = percentile, every, max_age, growth
        self.age, self.threshold, self.silences, self.steps = 0, max_age // 2, [], 0

    def step(self, fired: bool, samples: int) -> bool:
        if fired:
            if self.age:
                self.silences.append(min(self.age, self.max_age))
            self.age = 0
        else:
            self.age += samples
        if self.steps % self.every == 0 and self.silences:
            n = len(self.silences)
            reached = [s for s in self.silences if sum(t <= s for t in self.silences) / n >= self.percentile]
            quantile = min(reached)
            new = quantile if quantile < self.threshold else int(self.threshold * self.growth)
            self.threshold = min(max(new, samples), self.max_age)
            self.silences = []
        self.steps += 1
        if self.age >= self.threshold:
            self.silences.append(min(self.age, self.max_age))
            self.age = 0
            return True
        return False


@pytest.mark.parametrize("every", [1, 3, 16])
def test_many_units_are_many_lists(every: int) -> None:
    dice = random.Random(every)
    units, options = 40, (0.8, every, 50, 1.5)
    chances = [dice.uniform(0.02, 0.9) for _ in range(units)]
    together, alone = Silences(units, *options), [Lists(*options) for _ in range(units)]
    resets = 0
    for _ in range(200):
        samples = dice.choice([2, 3])
        fired = [dice.random() < chance for chance in chances]
        mask = together.step(torch.tensor(fired), samples).tolist()
        assert mask == [unit.step(f, samples) for unit, f in zip(alone, fired, strict=True)]
        assert together.age.tolist() == [unit.age for unit in alone]
        assert together.threshold.tolist() == [unit.threshold for unit in alone]
        resets += sum(mask)
    assert resets > 20


def test_a_unit_that_falls_silent_is_recycled() -> None:
    torch.manual_seed(0)
    model = Perceptron()
    net = Net.of({"model": model})
    adam = torch.optim.Adam(model.parameters(), lr=0)
    method = SelfNormalizedResets(max_age=200, every=4)
    with torch.no_grad():
        model.layers[0].bias[3] = -100
    x = torch.randn(64, 5)
    expected = model(x)
    with method.watch(net):
        for step in range(4):
            adam.zero_grad()
            model(x).square().sum().backward()
            adam.step()
            method.after_step(net, Context(0, step, torch.Generator().manual_seed(step), optimizers=[adam]))
    assert model.layers[0].bias[3] > -1
    assert (model.layers[2].weight[:, 3] == 0).all()
    torch.testing.assert_close(model(x), expected)  # it had said nothing, and still says nothing
    others = [i for i in range(8) if i != 3]
    assert torch.equal(model.layers[0].weight[others], net.init["model"]["layers.0.weight"][others])
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("options", [{"percentile": 1.0}, {"every": 0}, {"variant": "x"}])
def test_refused_options(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SelfNormalizedResets(**options)
