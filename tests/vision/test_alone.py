"""Steps without autograd are those with it, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vision.train as trainer
from fire_core.harness.options.errors import TrainingError
from tests.programs import ALIKE, Program, final_state, rows, same
from vision.learner import Learner
from vision.phase import no_denormals
from vision.stack.alone import steps_without_autograd
from vision.stack.loss import LARGEST, cross_entropy

TINY = Program("vision", "vision.train", (*ALIKE, "epochs=2", "batch_size=32", "dataset.train_size=320", "cache=off"))
RANDOM = ("benchmark=random_labels", "benchmark.tasks=3", "benchmark.samples=300", "model.depth=2", "model.norm=false")
SETTINGS = {
    "random labels": (*RANDOM, "model.hidden=20"),
    "clipped": (*RANDOM, "model.hidden=32", "grad_clip=0.01"),
    "batch norm": ("benchmark=warm_start", "model.norm=true", "model.hidden=20", "schedule=reference"),
}
WITH_AUTOGRAD = "on_nan=skip"  # which tries each step before it is taken, and so needs autograd's


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def learner_of(*options: str) -> tuple[Any, Learner]:
    task = trainer.PROGRAM.make_task(TINY.compose(*options))
    learner = Learner.new(task)
    trainer.begin_phase(task, learner, 0)
    return task, learner


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", ["fire", "full_reset", "redo method.threshold=0.9"])
def test_rows_are_the_same(setting: str, method: str, tmp_path: Path) -> None:
    options = (*SETTINGS[setting], *f"method={method}".split())
    quick, slow = TINY.run(tmp_path / "quick", *options), TINY.run(tmp_path / "slow", *options, WITH_AUTOGRAD)
    assert rows(quick) == rows(slow)
    assert same(final_state(quick), final_state(slow))


@pytest.mark.parametrize(("interrupted", "resumed"), [((), (WITH_AUTOGRAD,)), ((WITH_AUTOGRAD,), ())])
def test_a_checkpoint_is_the_same(interrupted: tuple[str], resumed: tuple[str], tmp_path: Path) -> None:
    """Steps of either kind go on from a learner's state that the other left."""
    found = []
    for first, second in ((interrupted, resumed), ((), ())):
        task, learner = learner_of(*SETTINGS["random labels"], *first)
        take(task, learner, 5)
        state = learner.state_dict()
        task, learner = learner_of(*SETTINGS["random labels"], *second)
        learner.load_state_dict(task, state)
        take(task, learner, 5)
        found.append(learner.state_dict())
    for key in found[0]["model"]:
        assert torch.equal(found[0]["model"][key], found[1]["model"][key])
    moments = [[s["exp_avg_sq"] for s in state["optimizer"]["state"].values()] for state in found]
    assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
    assert {float(s["step"]) for s in found[0]["optimizer"]["state"].values()} == {10.0}


def take(task: Any, learner: Learner, count: int) -> None:
    quick = steps_without_autograd(task, learner, acts=False)
    assert (quick is None) == (task.config.on_nan == "skip")
    for images, labels in list(trainer.batches(task, 0, start=learner.phase_step))[:count]:
        if quick is None:
            trainer.train_step(task, learner, images, labels, acts=False)
        else:
            quick.take(images, labels)
        learner.phase_step += 1
        learner.step += 1
    if quick is not None:
        quick.write_back()


@pytest.mark.parametrize(
    "options",
    [
        (WITH_AUTOGRAD,),
        ("model=small_resnet",),
        ("method=l2init",),  # a penalty
        ("method=weight_clipping",),  # after each step
        ("method=cbp",),  # watches activations
        ("method=muon",),  # another optimizer
        ("batch_size=1",),  # sums of another order
    ],
)
def test_what_needs_autograd(options: tuple[str, ...]) -> None:
    where = SETTINGS["random labels"] if options[0] != "model=small_resnet" else RANDOM[:3]
    task, learner = learner_of(*where, *options)
    assert steps_without_autograd(task, learner, acts=True) is None


def test_a_loss_that_is_not_finite_stops_before_the_step() -> None:
    task, learner = learner_of(*SETTINGS["random labels"])
    learner.model.get_parameter("head.weight").data[0, 0] = torch.nan
    before = {key: value.clone() for key, value in learner.model.state_dict().items()}
    quick = steps_without_autograd(task, learner, acts=False)
    assert quick is not None
    images, labels = next(iter(trainer.batches(task, 0)))
    with pytest.raises(TrainingError, match="not finite at step 0"):
        quick.take(images, labels)
    for key, value in learner.model.state_dict().items():
        assert torch.equal(value, before[key]) or key == "head.weight"


@pytest.mark.parametrize("batch", [1, 2, 16, 17, 18, 33, 48, 64, 100, LARGEST, LARGEST + 1])
def test_losses_of_many_networks_are_summed_as_those_of_one(batch: int) -> None:
    generator = torch.Generator().manual_seed(batch)
    logits = 5 * torch.randn(50, batch, 10, generator=generator)
    labels = torch.randint(10, (50, batch), generator=generator)
    assert_equal_to_autograd(logits, labels)


@pytest.mark.parametrize("classes", [2, 3, 7, 8, 9, 15, 16, 17, 33])
def test_losses_of_any_number_of_classes(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = 5 * torch.randn(50, 64, classes, generator=generator)
    assert_equal_to_autograd(logits, torch.randint(classes, (50, 64), generator=generator))


def assert_equal_to_autograd(logits: torch.Tensor, labels: torch.Tensor) -> None:
    losses, gradient = cross_entropy(logits, labels)
    own = logits.clone().requires_grad_()
    alone = torch.stack([torch.nn.functional.cross_entropy(*one) for one in zip(own, labels, strict=True)])
    alone.sum().backward()
    assert torch.equal(losses, alone)
    assert own.grad is not None
    assert torch.equal(gradient, own.grad)


def test_denormals_are_zero_within_the_steps_alone() -> None:
    tiny = torch.tensor(1e-40)
    with no_denormals(), no_denormals():
        assert (tiny * 1).item() == 0
    assert (tiny * 1).item() > 0
