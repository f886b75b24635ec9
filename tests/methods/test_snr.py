"""Self-normalised resets: bookkeeping against plain lists, and a silent unit in a real network."""

import random

import pytest
import torch

from fire_core.methods import Net
from fire_core.methods.snr import SelfNormalizedResets, Silences
from tests.methods.small import moment, perceptron


class Lists:
    """One unit, with every silence in a list and the percentile by counting."""

    def __init__(self, percentile: float, every: int, max_age: int, growth: float, batch: int) -> None:
        self.percentile, self.every, self.max_age, self.growth, self.batch = percentile, every, max_age, growth, batch
        self.age, self.threshold, self.silences, self.epochs = 0, max_age // 2, [], 0

    def step(self, fired: bool) -> bool:
        if fired:
            if self.age:
                self.silences.append(self.age)
            self.age = 0
            return False
        self.age += self.batch
        if self.age < self.threshold:
            return False
        self.silences.append(self.age)
        self.age = 0
        return True

    def end_epoch(self) -> None:
        self.epochs += 1
        if self.epochs % self.every == 0:
            n = len(self.silences)
            reached = [s for s in self.silences if sum(t <= s for t in self.silences) / n >= self.percentile - 1e-6]
            quantile = min(reached, default=0)
            new = quantile if quantile < self.threshold else int(self.threshold * self.growth)
            self.threshold = min(max(new, self.batch), self.max_age)
            self.silences = []


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("batch", [1, 4])
def test_many_units_are_many_lists(every: int, batch: int) -> None:
    dice = random.Random(every)
    units, options = 40, (0.8, every, 60, 1.5)
    chances = [*(dice.uniform(0.02, 0.9) for _ in range(units - 2)), 1.0, 0.0]
    together = Silences(units, *options, batch=batch)
    alone = [Lists(*options, batch) for _ in range(units)]
    resets = 0
    for _ in range(12):
        for _ in range(20):
            fired = [dice.random() < chance for chance in chances]
            mask = together.step(torch.tensor(fired), batch).tolist()
            assert mask == [unit.step(f) for unit, f in zip(alone, fired, strict=True)]
            assert together.age.tolist() == [unit.age for unit in alone]
            resets += sum(mask)
        together.end_epoch()
        for unit in alone:
            unit.end_epoch()
        assert together.threshold.tolist() == [unit.threshold for unit in alone]
    assert resets > 20


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
