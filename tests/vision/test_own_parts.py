"""Methods, networks and streams of a user's own that do what those of this project do not."""

import functools
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vision.train as trainer
from fire_core.methods import Context, Method, Net
from fire_core.methods.chain import Chain
from harness.config.errors import ConfigError, Diverged, TrainingError
from harness.run.checkpoint import check_readable
from harness.run.folder import Run
from tests.programs import Program, assert_same, rows
from vision.benchmarks import Benchmark, Phase
from vision.data import ImageData
from vision.learner import Learner

TINY = Program(
    "vision",
    "vision.train",
    (
        *("scale=smoke", "tracker=none", "progress=false", "threads=1", "model.hidden=8", "model.depth=1"),
        *("benchmark=random_labels", "benchmark.tasks=3", "benchmark.samples=64", "epochs=2"),
        *("batch_size=32", "lr=1e-3", "metrics=cheap", "cache=off"),
    ),
)


def composed(group: str, name: str, *overrides: str, **options: Any) -> Any:
    """A configuration in which a group's choice is a class of this module."""
    config = TINY.compose(*overrides)
    config[group] = {"_target_": f"{__name__}.{name}", "name": name.lower(), **options}
    return config


class CountsFromItsOptimizer(Method):
    """Its state begins anew where its optimizer is made, and not on a resume."""

    FIELDS = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def optimizer(self, net: Net, default: Any) -> torch.optim.Optimizer:
        self.count = 0
        optimizer: torch.optim.Optimizer = default(net.parameters())
        return optimizer

    def after_step(self, net: Net, context: Context) -> None:
        self.count += 1
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(1 - 0.1 / self.count)


class ScalesGradients(Method):
    """Its optimizer uses a tensor of its state, which later steps change in place."""

    FIELDS = ("scale",)

    def __init__(self) -> None:
        self.scale = torch.ones(())

    def optimizer(self, net: Net, default: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = default(net.parameters())
        scale = self.scale

        def scale_gradients(*_: Any) -> None:
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)

        optimizer.register_step_pre_hook(scale_gradients)
        return optimizer

    def after_step(self, net: Net, context: Context) -> None:
        self.scale.mul_(0.9)


@pytest.mark.parametrize("method", ["CountsFromItsOptimizer", "ScalesGradients"])
def test_a_resume_restores_a_state_that_has_to_do_with_the_method_s_optimizer(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config() -> Any:
        return composed("method", method, "optimizer=sgd", "lr=0.1")

    calm = TINY.run_composed(tmp_path / "calm", config())
    real, steps = trainer.Loop.advance, 0

    def step_or_cut(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 7:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(trainer.Loop, "advance", step_or_cut)
    monkeypatch.setattr(trainer.Run, "checkpoint_due", property(lambda _: steps % 3 == 0))
    with pytest.raises(KeyboardInterrupt):
        TINY.run_composed(tmp_path / "rough", config())
    assert_same(TINY.run_composed(tmp_path / "rough", config()), calm)


class RemembersLosses(Method):
    FIELDS = ("losses",)

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=3)


def test_a_state_that_no_checkpoint_can_hold_is_refused_at_the_first_save(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"cannot hold .*method.losses, which is a collections.deque: keep tensors"):
        TINY.run_composed(tmp_path, composed("method", "RemembersLosses"))
    assert not list(tmp_path.rglob("*.pt"))


def with_attribute() -> Tensor:
    tensor = torch.zeros(1)
    tensor.history = deque()  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize(
    "value", [np.float64(1), np.zeros(2), {"a": [1, (deque(),)]}, lambda: 1, {np.int64(3): 1}, with_attribute()]
)
def test_what_could_not_be_read_again(value: Any) -> None:
    with pytest.raises(TrainingError, match=r"a checkpoint cannot hold state.x"):
        check_readable({"x": value}, "state")


def test_what_can_be_read_again() -> None:
    check_readable(nn.Linear(2, 2).state_dict())
    check_readable({"x": [1, 0.5, "a", b"b", None, True, {2}, torch.zeros(1), torch.Size([1]), torch.float32]})


class TrainsPart(Method):
    """Its optimizer does not hold frozen weights, as many loops have it."""

    def optimizer(self, net: Net, default: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = default([p for p in net.parameters() if p.requires_grad])
        return optimizer


def test_an_optimizer_without_frozen_weights_goes_on_until_there_are_new_ones() -> None:
    task = trainer.Task.from_config(composed("method", "TrainsPart"))
    learner = Learner.new(task)
    next(learner.model.parameters()).requires_grad_(False)
    trainer.begin_phase(task, learner, 0, None)
    optimizer = learner.optimizer
    trainer.begin_phase(task, learner, 1, None)
    assert learner.optimizer is optimizer
    learner.model.register_parameter("more", nn.Parameter(torch.zeros(1)))
    trainer.begin_phase(task, learner, 2, None)
    assert learner.optimizer is not optimizer


def test_an_optimizer_is_made_anew_for_weights_that_are_no_longer_frozen() -> None:
    task = trainer.Task.from_config(composed("method", "TrainsPart"))
    learner = Learner.new(task)
    frozen = next(learner.model.parameters()).requires_grad_(False)
    trainer.begin_phase(task, learner, 0, None)
    frozen.requires_grad_(True)
    trainer.begin_phase(task, learner, 1, None)
    assert any(frozen is parameter for group in learner.optimizer.param_groups for parameter in group["params"])


class OfTwoClasses(Benchmark):
    """Each task has two of the classes, as a data set of its own, and methods act from the second task on."""

    keeps_optimizer = True
    new_tasks = True
    methods_from_phase = 1
    headline = "task_end/accuracy"

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        phases = []
        for first in (0, 2, 4):
            change = functools.partial(of_two_classes, first=first)
            own = change(data)
            train, test = (np.arange(len(labels)) for labels in (own.train_labels, own.test_labels))
            phases.append(Phase(train, test, epochs, change=change))
        return phases


def of_two_classes(data: ImageData, first: int) -> ImageData:
    train, test = ((labels == first) | (labels == first + 1) for labels in (data.train_labels, data.test_labels))
    return replace(
        data,
        train_images=data.train_images[train],
        train_labels=data.train_labels[train],
        test_images=data.test_images[test],
        test_labels=data.test_labels[test],
    )


@pytest.mark.parametrize("method", ["base", "fire", "dash", "muon"])
def test_tasks_with_images_of_their_own(method: str, tmp_path: Path) -> None:
    found = rows(
        TINY.run_composed(tmp_path, composed("benchmark", "OfTwoClasses", f"method={method}", "model.depth=2"))
    )
    assert [row["phase"] for row in found if "kind" in row] == [1, 2]
    assert all(0 <= row["test/accuracy"] <= 1 for row in found if "kind" not in row)


class LessAndLess(Benchmark):
    """The first task has each image twice."""

    new_tasks = True
    headline = "task_end/accuracy"

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        once, test = np.arange(len(data.train_labels)), np.arange(len(data.test_labels))
        return [Phase(np.arange(2 * len(once)), test, epochs, change=twice), Phase(once, test, epochs)]


def twice(data: ImageData) -> ImageData:
    images, labels = (torch.cat([part] * 2) for part in (data.train_images, data.train_labels))
    return replace(data, train_images=images, train_labels=labels)


def test_dash_refuses_earlier_data_that_are_no_longer_there(tmp_path: Path) -> None:
    config = composed("benchmark", "LessAndLess", "method=dash")
    with pytest.raises(TrainingError, match=r"^method=dash before phase 1: phase 1 has fewer images than an earlier"):
        TINY.run_composed(tmp_path, config)


def test_a_method_s_own_optimizer_begins_with_the_phase_from_which_it_acts() -> None:
    task = trainer.Task.from_config(composed("benchmark", "OfTwoClasses", "method=muon", "model.depth=2"))
    learner = Learner.new(task)
    made = []
    for phase in range(3):
        trainer.begin_phase(task, learner, phase, None)
        made.append(learner.optimizer)
    assert [hasattr(optimizer, "parts") for optimizer in made] == [False, True, True]
    assert made[1] is made[2]


class Unusual(nn.Module):
    """A network with a mask of -inf, a buffer that is not saved, and extra state."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int, kind: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(in_channels * image_size**2, num_classes)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))
        self.register_buffer("statistics", torch.zeros(2))
        self.register_buffer("unsaved", torch.full((2,), torch.inf), persistent=False)
        if kind == "complex":
            self.phase = nn.Parameter(torch.zeros(num_classes, dtype=torch.complex64))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits + (self.phase.abs() if self.kind == "complex" else 0)

    def get_extra_state(self) -> dict[str, Any]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state == {"version": 1}


@pytest.mark.parametrize("method", ["base", "fire", "full_reset", "snp"])
def test_a_network_with_a_mask_and_extra_state(method: str, tmp_path: Path) -> None:
    folder = TINY.run_composed(tmp_path, composed("model", "Unusual", f"method={method}"))
    assert rows(folder)[-1]["phase"] == 2


def test_a_buffer_that_becomes_infinite_is_a_divergence() -> None:
    learner = Learner.new(trainer.Task.from_config(composed("model", "Unusual")))
    learner.model.get_buffer("statistics").fill_(torch.inf)
    with pytest.raises(Diverged):
        learner.save(cast("Run", None))


def test_complex_weights_need_an_optimizer_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"complex weights, which torch's fused .*: optimizer.fused=false"):
        trainer.Task.from_config(composed("model", "Unusual", kind="complex"))
    config = composed("model", "Unusual", "optimizer.fused=false", kind="complex")
    assert rows(TINY.run_composed(tmp_path, config))[-1]["phase"] == 2


class Reports(Method):
    def __init__(self, kind: str) -> None:
        self.values: dict[str, Any] = {
            "tensor": {"x": torch.tensor(2.0)},
            "numpy": {"x": np.float32(2)},
            "nothing": None,
            "many": {"x": torch.zeros(2)},
            "object": {"x": object()},
        }
        self.kind = kind

    def at_boundary(self, net: Net, context: Context) -> Any:
        return self.values[self.kind]

    def after_epoch(self, net: Net, context: Context) -> Any:
        return self.values[self.kind]


@pytest.mark.parametrize("kind", ["tensor", "numpy", "nothing"])
def test_numbers_of_a_method_may_be_of_any_kind(kind: str, tmp_path: Path) -> None:
    found = rows(TINY.run_composed(tmp_path, composed("method", "Reports", kind=kind)))
    expected = None if kind == "nothing" else 2.0
    assert [row.get("boundary/x") for row in found if "kind" in row] == [expected] * 2
    assert found[0].get("method/x") == expected


def test_a_chain_s_methods_may_return_nothing() -> None:
    learner = Learner.new(trainer.Task.from_config(TINY.compose()))
    context = Context(0, 0, torch.Generator())
    chain = Chain({"a": Reports("nothing"), "b": Reports("numpy")})
    assert chain.at_boundary(learner.net, context).numbers == chain.after_epoch(learner.net, context) == {"x": 2}


@pytest.mark.parametrize(("kind", "made"), [("many", "Tensor"), ("object", "object")])
def test_what_is_no_number_is_refused_with_the_method_s_name(kind: str, made: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=rf"^Reports returns x as a {made}: a row holds numbers$"):
        TINY.run_composed(tmp_path, composed("method", "Reports", kind=kind))


def test_images_beyond_the_range_of_float32_are_refused() -> None:
    images, labels = torch.full((4, 1, 8, 8), 1e200, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="beyond the range of float32"):
        ImageData.of((images, labels), (images, labels), 2)
