"""Schedules, plateaus, combinations, states, and what is refused."""

import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from fire_core.triggers import At, Dormancy, Drift, EffectiveRank, Every, Firing, Plateau, Trigger
from tests.triggers.loops import mlp, train


def fired(trigger: Trigger, steps: int, **metrics: list[float]) -> list[int]:
    """The steps at which it fires; metrics by step, from 1."""
    given = [{name: values[step] for name, values in metrics.items()} for step in range(steps)]
    return [step for step in range(1, steps + 1) if trigger.ask(step, None, **given[step - 1])]


@pytest.mark.parametrize(
    ("trigger", "asked", "fires"),
    [
        (At([3, 7]), range(1, 11), [3, 7]),
        (At(torch.tensor([7, 3])), range(1, 11), [3, 7]),
        (At([3.0, 10**400]), range(1, 11), [3]),
        (At(4), range(1, 11), [4]),
        (Every(4), range(1, 13), [4, 8, 12]),
        (Every(4) | At([5]), range(1, 10), [4, 5, 8]),
        (Every(10) | At([4, 5]), (3, 7, 12, 12, 18, 41, 42), [7, 12, 41]),  # steps that the loop leaves out
        (Every(10), (15, 19), []),
        (Every(10), (20,), [20]),
        (At([5]), (20, 21), []),
    ],
)
def test_schedules(trigger, asked, fires):
    assert [step for step in asked if trigger.ask(step)] == fires


def test_what_was_due_at_the_last_step_comes_first_if_training_goes_on():
    def run(trigger: Trigger, first: int, total: int) -> list[int]:
        trigger.start(total_steps=total, after=first - 1)
        return [step for step in range(first, total + 1) if trigger.ask(step)]

    for make in (lambda: At([20, 50]), lambda: Every(50) | At([20])):
        trigger = make()
        assert run(trigger, 1, 50) == [20]
        again = make()
        again.load_state_dict(json.loads(json.dumps(trigger.state_dict())))
        assert run(trigger, 51, 80) == run(again, 51, 80) == [51]


# ----------------------------------------------------------------------------------------------------------- plateau


def reference(values: list[float], every: int, patience: int, min_delta: float, cooldown: int) -> list[int]:
    """The definition, written the slow way: all values at once."""
    found, begin = [], 0
    while True:
        means = [
            (end, float(np.mean([values[i] for i in range(max(begin, end - every), end)])))
            for end in range(every, len(values) + 1, every)
            if end > begin
        ]
        best, waited, hit = None, 0, None
        for end, mean in means:
            if best is None or best - mean > min_delta * abs(best):
                best, waited = mean, 0
            else:
                waited += 1
            if waited == patience:
                hit = end
                break
        if hit is None:
            return found
        found.append(hit)
        begin = -(-(hit + cooldown) // every) * every  # where the next whole window begins


@pytest.mark.parametrize("cooldown", [0, 7, 30])
@pytest.mark.parametrize("seed", range(4))
def test_plateau_is_what_its_definition_says(seed, cooldown):
    generator = random.Random(seed)
    values = [3 * 0.97 ** (i % 130) + 0.3 * generator.random() for i in range(600)]
    expected = reference(values, 10, 3, 0.01, cooldown)
    assert len(expected) >= 3
    assert fired(Plateau("loss", 10, 3, 0.01, cooldown=cooldown), 600, loss=values) == expected
    tensors = [torch.tensor([value], dtype=torch.float64) for value in values]
    assert fired(Plateau("loss", 10, 3, 0.01, cooldown=cooldown), 600, loss=tensors) == expected


def test_plateau_of_a_score_that_comes_seldom():
    score = [None] * 400
    score[49::50] = [0.2, 0.5, 0.6, 0.59, 0.6, 0.61, 0.9, 0.9]
    trigger = Plateau("score", every=1, patience=3, mode="max", min_delta=0.05)
    assert fired(trigger, 400, score=score) == [300]  # 0.59, 0.6, 0.61 are no improvement of 5 % over 0.6
    assert trigger.value == 0.9


def test_plateau_takes_whole_windows_after_a_late_start_and_another_s_act():
    for trigger in (Plateau("loss", every=100, patience=2), Plateau("loss", every=100, patience=2) | Every(1000)):
        trigger.start(after=90)  # and asked every third step: 102 comes first after the window's begin
        losses = {93: 0.0, 102: -50.0}
        assert [step for step in range(93, 450, 3) if trigger.ask(step, loss=losses.get(step, 1.0))] == [402]
    trigger.acted(455)
    assert trigger.parts[0].begin == 500


def test_a_firing_says_why():
    trigger = Plateau("loss", every=2, patience=1) | Every(100)
    firings = [trigger.ask(step, None, loss=loss) for step, loss in enumerate([3, 1, 2, 4], start=1)]
    assert firings[:3] == [None] * 3
    assert firings[3].step == 4
    assert firings[3].trigger == "plateau"
    assert firings[3].reason == "loss 3 not below 2 for 1 x 2 steps"
    assert firings[3].numbers == {"loss": 3.0, "best": 2.0}


# -------------------------------------------------------------------------------------- what holds for every trigger

ALL = {
    "at": lambda: At([50, 120]),
    "every": lambda: Every(40),
    "plateau": lambda: Plateau("loss", every=5, patience=3, min_delta=0.05, cooldown=4),
    "dormancy": lambda: Dormancy(above=0.05, every=7, rearm=0.05),
    "rank": lambda: EffectiveRank(below=0.9, every=9, rearm=0.9),
    "drift": lambda: Drift(above=0.002, every=6),
    "either": lambda: Drift(above=0.004, every=6, cooldown=9) | Plateau("loss", 5, 6) | At([77]),
}


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_trigger_goes_on_as_if_nothing_had_happened(name):
    """Stopped again and again, with the state through JSON and a new trigger on a new model."""
    whole = train(ALL[name](), 160)
    assert whole.firings, "else the test shows nothing"
    run = train(ALL[name](), 1)
    for number, stop in enumerate((6, 7, 9, 10, 50, 120, 141, 146, 160)):
        state = json.loads(json.dumps(run.trigger.state_dict()))
        run = train(ALL[name](), stop, run, state, start_first=number % 2 == 1)
        assert run.firings == [firing for firing in whole.firings if firing[0] <= stop], stop


@pytest.mark.parametrize("name", ALL)
def test_no_random_numbers_and_no_change_of_the_training(name):
    """The run with a trigger that is only asked draws the numbers of a run without."""
    asked, plain = train(ALL[name](), 60, act=False), train(None, 60)
    assert torch.equal(asked.random, plain.random)
    for a, b in zip(asked.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert asked.python_random == plain.python_random
    hooks = [m._forward_pre_hooks for m in asked.model.modules()]
    assert sum(map(len, hooks)) <= 2, "of a measurement under way at most"


@pytest.mark.parametrize("name", ALL)
def test_between_measurements_no_number_is_read_from_a_device(name, monkeypatch):
    """Every way by which the host reads a tensor's value, counted in the steps in which nothing is due."""
    reads: list[str] = []
    for way in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy", "nonzero", "to"):
        original = getattr(torch.Tensor, way)

        def counted(self, *given, _original=original, _way=way, **named):
            reads.append(_way)
            return _original(self, *given, **named)

        monkeypatch.setattr(torch.Tensor, way, counted)
    trigger, model = ALL[name](), mlp()
    measured = 0
    for step in range(1, 50):
        loss = model(torch.ones(3, 8)).square().mean()
        loss.backward()
        before = trigger.state_dict()
        reads.clear()
        trigger.ask(step, model, loss=loss.detach())
        took = list(reads)
        parts = trigger.state_dict().get("parts", [trigger.state_dict()])
        due = any(p.get("due") or q.get("due") for p, q in zip(parts, before.get("parts", [before]), strict=True))
        every = [part.every for part in getattr(trigger, "parts", [trigger]) if hasattr(part, "every")]
        if step == 1 or due or any(step % n == 0 for n in every) or any(p.get("baseline", 0) is None for p in parts):
            measured += 1
        else:
            assert not took, (step, took)
    assert measured < 40


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: At([]), r"At: steps must be at least one whole number from 1 up, got \[\]"),
        (lambda: At([1.5]), r"At: .* got \[1\.5\]"),
        (lambda: At(math.inf), r"At: .* got \[inf\]"),
        (lambda: At(math.nan), r"At: .* got \[nan\]"),
        (lambda: At([3, None]), r"At: .* got \[3, None\]"),
        (lambda: Plateau(mode="least"), "mode=least is unknown; accepted: min, max"),
        (lambda: Dormancy(0.3, rearm=0.4), "Dormancy: rearm=0.4 must not lie above the threshold 0.3"),
        (lambda: Dormancy(1.0), r"above must be in \[0, 1\), got 1\.0"),
        (lambda: EffectiveRank(0), r"below must be in \(0, 1\], got 0"),
        (lambda: Drift(above=math.inf), "above must be a finite number, got inf"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (Every(1000), r"Every\(1000\) cannot fire within 1000 steps: nothing fires at the last one"),
        (Plateau(every=100, patience=10), r"Plateau\('loss', every=100, patience=10\) cannot fire within 1000 steps"),
        (Every(1500) | At([2000]), r"\(Every\(1500\) \| At\(\[2000\]\)\) cannot fire within 1000 steps"),
        (Drift(0.1, every=1000), r"Drift\(above=0.1, every=1000\) cannot fire"),
    ],
)
def test_a_trigger_that_can_never_fire_is_refused_at_the_start(trigger, message):
    with pytest.raises(ValueError, match=message):
        trigger.start(mlp(), total_steps=1000)
    (trigger | Every(999)).start(mlp(), total_steps=1000)


@pytest.mark.parametrize(
    ("trigger", "model", "message"),
    [
        (Plateau("los"), None, "Plateau: there is no metric 'los'; metrics of this loop: loss, score"),
        (Dormancy(0.3), None, r"Dormancy measures the model: ask\(step, model\)"),
        (Dormancy(0.3), nn.Linear(3, 3), "no hidden units of Linear are declared or can be traced"),
        (EffectiveRank(0.3), nn.Conv2d(3, 3, 3), "the model has no linear layer"),
        (Drift(0.3), nn.LayerNorm(3), "Drift: the model has no weight matrices"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_the_first_step(trigger, model, message):
    with pytest.raises(ValueError, match=message):
        trigger.ask(1, model, loss=1.0, score=None)
    Plateau("score").ask(1, None, loss=1.0, score=None)


class Accurate(Trigger):
    """A trigger of a user's own, which follows a metric and defines no more than it must."""

    name = "accurate"

    def needs(self):
        return {"accuracy"}

    def look(self, last, step, net, metrics):
        accuracy = metrics.get("accuracy")
        return Firing(step, self.name, "accurate") if accuracy is not None and accuracy > 0.5 else None


@pytest.mark.parametrize("trigger", [Accurate(), Accurate() | Every(5), Every(5) | Plateau("loss") | Accurate()])
def test_an_own_trigger_needs_what_the_loop_gives(trigger):
    with pytest.raises(ValueError, match=r"^Accurate: there is no metric 'accuracy'; metrics of this loop: loss$"):
        trigger.start(metrics=("loss",))
    with pytest.raises(ValueError, match=r"^Accurate: there is no metric 'accuracy'; metrics of this loop: loss$"):
        trigger.ask(1, loss=1.0)
    trigger.start(metrics=("loss", "accuracy"))
    assert trigger.ask(1, loss=1.0, accuracy=0.6)


def test_a_step_that_is_left_out_before_the_first_one_counts() -> None:
    for trigger, fires in ((At(50), [True, False]), (Every(70), [True, True])):
        trigger.start(after=0)
        assert [bool(trigger.ask(step)) for step in (100, 200)] == fires
    assert not At(50).ask(100), "where nobody said that the run begins at 0"


def test_plateau_says_once_that_it_is_fed_nan() -> None:
    trigger = Plateau("loss", every=2, patience=2)
    trigger.start(None, metrics=["loss"], total_steps=100)
    with pytest.warns(RuntimeWarning, match="the mean of loss over the steps up to 2 is nan; such a window") as warned:
        assert [trigger.ask(step, loss=math.nan) for step in range(1, 30)] == [None] * 29
    assert len(warned) == 1


def test_plateau_refuses_a_value_that_is_not_one_number() -> None:
    with pytest.raises(ValueError, match=r"Plateau: loss is a tensor of shape \(8,\): give one number"):
        Plateau("loss").ask(1, None, loss=torch.rand(8))
    assert Plateau("loss").ask(1, None, loss=torch.rand(1, 1)) is None


def test_plateau_s_first_window_is_whole_if_the_first_step_is_a_late_one() -> None:
    """As where a run goes on from weights of another, whose steps go on, too."""
    trigger = Plateau(every=100, patience=1)
    for step in range(5050, 5100):
        assert trigger.ask(step, loss=0.1) is None
    assert trigger.best is None
    for step in range(5100, 5201):
        trigger.ask(step, loss=1.0)
    assert trigger.best == 1.0
