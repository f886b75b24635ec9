"""`trigger=readiness` in the programs: what it measures, that it moves nothing, and what is refused."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from fire_core.methods.fire import Fire
from fire_core.triggers.readiness import Readiness
from harness.config.errors import ConfigError
from harness.training import seeding
from harness.training.firing import start
from tests.harness.training.test_firing import READY, STREAM, check
from vision.learner import Learner
from vision.phase import trigger_losses
from vision.task import Task
from vision.train import begin_phase


def test_it_measures_the_phase_and_moves_no_random_number() -> None:
    """Against gradients of single samples in float64, of the samples that the step's own generator draws."""
    task = Task.from_config(STREAM.compose(*READY, "trigger.samples=8"))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    learner.step = 6
    trigger, before = learner.trigger, torch.get_rng_state()
    assert isinstance(trigger, Readiness)
    start(task, learner, trigger_losses)
    assert trigger.ask(6, learner.net, loss=1.0) is not None
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in learner.model.parameters())
    assert learner.model.training

    generator = seeding.generator(task.config.seed, "trigger", 6)
    train = torch.from_numpy(task.phases[0].train)
    picks = torch.cat([train[torch.randint(len(train), (8,), generator=generator)] for _ in range(4)])
    images, labels = task.train_batch(0, picks)
    weights = {name: p.detach().double() for name, p in learner.model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return task.loss(functional_call(learner.model, weights, (x[None],)), y[None])

    single = vmap(grad(loss), (None, 0, 0))(weights, images.double(), labels)
    flat = torch.cat([g.flatten(1) for g in single.values()], 1).reshape(4, 8, -1).mean(1)  # (mini-batches, weights)
    batch = flat.square().sum(1).mean()
    whole = (4 * flat.mean(0).square().sum() - batch) / 3
    mean = torch.stack([loss(weights, x, y) for x, y in zip(images.double(), labels, strict=True)]).mean()
    assert trigger.value == pytest.approx(float(whole / mean * whole / batch), rel=1e-3)


def test_what_is_refused() -> None:
    check("readiness", Fire(), every=39)
    for options, says in (
        ({"every": 40}, r"^trigger=readiness: Readiness\(below=0.01, every=40\) cannot fire within 40 steps"),
        ({"batches": 1}, r"^trigger.batches must be at least 2, got 1$"),
        ({"below": 0}, r"^trigger.below must be positive, got 0$"),
    ):
        with pytest.raises(ConfigError, match=says):
            check("readiness", Fire(), **options)
