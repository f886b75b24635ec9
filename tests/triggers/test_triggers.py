"""Schedules, plateaus, combinations, states, and what is refused."""

import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from fire_core.triggers import At, Dormancy, Drift, EffectiveRank, Every, Firing, GradientNorm, Plateau, Trigger
from tests.triggers.loops import mlp, train


def fired(trigger: Trigger, steps: int, **metrics: list[float]) -> list[int]:
    """The steps at which it fires; metrics by step, from 1."""
    given = [{name: values[step] for name, values in metrics.items()} for step in range(steps)]
    return [step for step in range(1, steps + 1) if trigger.ask(step, None, **given[step - 1])]


def test_schedules():
    assert fired(At([3, 7]), 10) == [3, 7]
    assert fired(At(4), 10) == [4]
    assert fired(Every(4), 12) == [4, 8, 12]
    assert fired(Every(4) | At([5]), 9) == [4, 5, 8]
    assert fired(Every(4) & Every(6), 30) == [12, 24]
    assert fired(Every(2) & At([3, 4]) | At([9]), 10) == [4, 9]


def test_steps_that_a_loop_leaves_out_are_made_up_for():
    trigger = Every(10) | At([4, 5])
    assert [step for step in (3, 7, 12, 12, 18, 41, 42) if trigger.ask(step)] == [7, 12, 41]
    with pytest.raises(ValueError, match=r"asked about step 42 and now about 41: steps must not go back"):
        trigger.ask(41)


def test_the_first_question_may_come_late():
    assert not Every(10).ask(15)
    assert Every(10).ask(20)
    assert not At([5]).ask(20)


def test_nothing_fires_at_the_last_step():
    trigger = Every(5)
    trigger.start(total_steps=10)
    assert fired(trigger, 10) == [5]


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
        begin = hit + cooldown


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
    assert trigger.numbers() == {"plateau": 0.9}


def test_a_loss_that_is_not_finite_is_no_improvement():
    assert fired(Plateau(every=1, patience=3), 8, loss=[float("nan"), 2.0, float("nan"), 3.0, 3.0, 1.0, 1.0, 1.0]) == [
        5
    ]


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
    "norm": lambda: GradientNorm(above=0.1, every=11, rearm=0.1),
    "both": lambda: Every(10) & Dormancy(above=0.01, every=5, rearm=0.01),
    "either": lambda: Drift(above=0.004, every=6, cooldown=9) | Plateau("loss", 5, 6) | At([77]),
}


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_trigger_goes_on_as_if_nothing_had_happened(name):
    """Stopped after some steps, with the state through JSON and a new trigger on a new model."""
    whole = train(ALL[name](), 160)
    assert whole.firings, "else the test shows nothing"
    for number, stop in enumerate((1, 6, 7, 9, 10, 50, 120, 141, 146)):
        first = train(ALL[name](), stop)
        state = json.loads(json.dumps(first.trigger.state_dict()))
        again = train(ALL[name](), 160, first, state, start_first=number % 2 == 1)
        assert again.firings == whole.firings, stop


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
        (lambda: At([0, 3]), r"At: .* got \[0, 3\]"),
        (lambda: At([1.5]), r"At: .* got \[1\.5\]"),
        (lambda: At(5.0), r"At: .* got \[5\.0\]"),
        (lambda: At([True]), r"At: .* got \[True\]"),
        (lambda: At("12"), r"At: .* got \['1', '2'\]"),
        (lambda: Every(0), "Every: steps must be a whole number, at least 1, got 0"),
        (lambda: Every(2.5), "Every: steps must be a whole number, at least 1, got 2.5"),
        (lambda: Every("5"), "Every: steps must be a whole number, at least 1, got '5'"),
        (lambda: Plateau(every=0), "Plateau: every must be at least 1, got 0"),
        (lambda: Plateau(mode="least"), "Plateau: mode=least is unknown; accepted: min, max"),
        (lambda: Plateau(min_delta=1.5), r"Plateau: min_delta must be in \[0, 1\), got 1.5"),
        (lambda: GradientNorm(), "GradientNorm: give either above or below"),
        (lambda: GradientNorm(above=1, below=2), "GradientNorm: give either above or below"),
        (lambda: Dormancy(0.3, rearm=0.4), "Dormancy: rearm=0.4 must not lie above the threshold 0.3"),
        (lambda: EffectiveRank(0.3, rearm=0.2), "EffectiveRank: rearm=0.2 must not lie below the threshold 0.3"),
        (lambda: Drift(0.3, every=0), "Drift: every must be at least 1"),
        (lambda: Drift(math.nan), "Drift: above must be a finite number, got nan"),
        (lambda: GradientNorm(above=math.inf), "GradientNorm: above must be a finite number, got inf"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (Every(1000), r"Every\(1000\) cannot fire within 1000 steps"),
        (At([2000, 3000]), r"At\(\[2000, 3000\]\) cannot fire within 1000 steps"),
        (Plateau(every=100, patience=10), r"Plateau\('loss', every=100, patience=10\) cannot fire within 1000 steps"),
        (Every(100) & At([2000]), r"\(Every\(100\) & At\(\[2000\]\)\) cannot fire within 1000 steps"),
        (Drift(0.1, every=1000), r"Drift\(above=0.1, every=1000\) cannot fire"),
        (Dormancy(above=1), r"Dormancy\(above=1, every=100\) cannot fire"),
        (EffectiveRank(below=0), r"EffectiveRank\(below=0, every=100\) cannot fire"),
        (GradientNorm(below=0), r"GradientNorm\(below=0, every=100\) cannot fire"),
        (Every(300) & Every(700), r"\(Every\(300\) & Every\(700\)\) cannot fire"),
        (Every(5) & At([7]), r"\(Every\(5\) & At\(\[7\]\)\) cannot fire"),
        ((Every(5) | Every(10)) & At([7, 8]), "cannot fire within 1000 steps"),
    ],
)
def test_a_trigger_that_can_never_fire_is_refused_at_the_start(trigger, message):
    with pytest.raises(ValueError, match=message):
        trigger.start(mlp(), total_steps=1000)
    (trigger | Every(999)).start(mlp(), total_steps=1000)


def test_schedules_that_coincide_are_accepted():
    (Every(30) & Every(70)).start(total_steps=211)
    (Every(5) & At([7, 10])).start(total_steps=11)
    ((Every(4) | At([9])) & Every(3)).start(total_steps=10)
    (Every(100) & Dormancy(0.3, every=7)).start(mlp(), total_steps=101)
    assert (Every(4) & Every(6)).earliest(12) == 24


def test_an_unknown_metric_is_refused_at_the_first_step():
    with pytest.raises(ValueError, match="Plateau: there is no metric 'los'; metrics of this loop: loss, score"):
        Plateau("los").ask(1, None, loss=1.0, score=None)
    with pytest.raises(ValueError, match="there is no metric 'loss'; metrics of this loop: none"):
        (Every(3) | Plateau()).ask(1)
    Plateau("score").ask(1, None, loss=1.0, score=None)


@pytest.mark.parametrize(
    ("trigger", "model", "message"),
    [
        (Dormancy(0.3), None, r"Dormancy measures the model: ask\(step, model\)"),
        (Dormancy(0.3), nn.Linear(3, 3), "no hidden units of Linear are declared or can be traced"),
        (EffectiveRank(0.3), nn.Conv2d(3, 3, 3), "the model has no linear layer"),
        (Drift(0.3), nn.LayerNorm(3), "Drift: the model has no weight matrices"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_the_first_step(trigger, model, message):
    with pytest.raises(ValueError, match=message):
        trigger.ask(1, model)


def test_arguments_of_ask_in_the_wrong_order():
    with pytest.raises(
        TypeError, match=r"^ask\(step, model\): the step is a whole number and comes first, got Linear$"
    ):
        Every(2).ask(nn.Linear(2, 2), 1)
    with pytest.raises(TypeError, match=r"^the model of a trigger is a module, got int$"):
        Every(2).ask(1, 1)
    assert Every(2).ask(np.int64(2)) is not None


def test_messages_say_what_to_do_between_two_runs():
    trigger = At([50])
    assert trigger.ask(60) is None
    with pytest.raises(ValueError, match="Each run needs a new trigger"):
        trigger.ask(10)


def test_what_was_due_at_the_last_step_comes_first_if_training_goes_on():
    def run(trigger: Trigger, first: int, total: int) -> list[Firing]:
        trigger.start(total_steps=total, after=first - 1)
        return [firing for step in range(first, total + 1) if (firing := trigger.ask(step))]

    for make in (lambda: At([20, 50]), lambda: Every(50) | At([20]), lambda: At([20, 50]) & Every(10)):
        trigger = make()
        assert [firing.step for firing in run(trigger, 1, 50)] == [20]
        saved = json.loads(json.dumps(trigger.state_dict()))
        again = make()
        again.load_state_dict(saved)
        for resumed in (trigger, again):
            fired = run(resumed, 51, 80)
            assert [firing.step for firing in fired] == [51]
            assert fired[0].reason.endswith("put off: step 50 was the last one")
            assert "missed" not in resumed.state_dict()


def test_only_triggers_combine():
    with pytest.raises(TypeError, match="a trigger combines with triggers, not with int"):
        Every(3) | 1000
