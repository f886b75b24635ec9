"""Details of the loop: batches, evaluation, and networks that cannot take the images."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vision.train as trainer
from harness.config.errors import ConfigError
from tests.programs import SMALL, VISION, rows
from tests.zygote import Zygote
from vision.benchmarks import Phase
from vision.phase import evaluate
from vision.task import Task


class Viewing(nn.Module):
    """Flattens by `view`, which only works on maps that lie in memory channel by channel."""

    def __init__(self, num_classes: int, **sizes: int) -> None:
        super().__init__()
        self.conv, self.drop, self.head = nn.Conv2d(1, 4, 3), nn.Dropout(), nn.Linear(144, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.conv(x))
        return self.head(x.view(x.size(0), -1))


VIEWING = ("model._target_=tests.vision.test_train.Viewing",)


@pytest.mark.parametrize(
    ("images", "size", "sizes"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 5]), (8, 4, [4, 4]), (1, 4, [1]), (3, 1, [1, 1, 1]), (5, 4, [5])],
)
def test_an_image_alone_joins_the_batch_before_it(images: int, size: int, sizes: list[int]) -> None:
    task = trainer.Task.from_config(VISION.compose("benchmark=warm_start", f"batch_size={size}"))
    task.phases = [Phase(np.arange(images), np.arange(1), epochs=2)]
    seen = [len(labels) for _, labels in trainer.batches(task, 0)]
    assert seen == 2 * sizes
    assert task.total_steps == len(seen)
    assert [len(labels) for _, labels in trainer.batches(task, 0, start=1)] == seen[1:]


@pytest.mark.parametrize("rate", ["lr=1000000.0", "optimizer.lr=1000000.0", "lr=0.003"])
def test_a_run_that_only_guesses_says_so_at_its_end(rate: str, tmp_path: Path, zygote: Zygote) -> None:
    learns = rate == "lr=0.003"
    options = SMALL.tiny(rate, "epochs=8", "model.hidden=64")
    for time in ("trained", "found done"):
        answer = zygote.run(tmp_path, "vision.train", *options)
        assert answer.code == 0, answer.err
        assert ("no better than guessing" in answer.err) != learns, answer.err
        assert (f" {rate} is too high" in answer.err) == (time == "trained" and not learns), answer.err


def test_a_network_that_cannot_take_the_images_is_refused_before_a_run() -> None:
    with pytest.raises(
        ConfigError, match=r"^model=small_resnet cannot take images \(1, 1, 8, 8\): view size .*contiguous"
    ):
        trainer.Task.from_config(VISION.compose(*VIEWING))
    trainer.Task.from_config(VISION.compose(*VIEWING, "memory_format=contiguous"))


class Returning(nn.Module):
    """A network of a user's own, which returns what `returns` names."""

    def __init__(self, num_classes: int, returns: str = "logits", **sizes: int) -> None:
        super().__init__()
        self.head, self.returns = nn.Linear(64, num_classes), returns

    def forward(self, x: Tensor) -> Any:
        logits = self.head(x.flatten(1))
        others = {
            "logits": logits,
            "more": logits.repeat(1, 2),
            "tuple": (logits, logits),
            "dict": {"logits": logits},
            "few": logits[:, :5],
            "map": logits.unsqueeze(2),
            "one": logits[0],
            "classes": logits.argmax(1),
            "integers": logits.long(),
        }
        return others[self.returns]


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("tuple", r"a tensor, and returns a tuple$"),
        ("dict", r"a tensor, and returns a dict$"),
        ("few", r"floats of shape \(1, 10\), a logit for each class, and returns float32 of shape \(1, 5\)$"),
        ("map", r"floats of .* float32 of shape \(1, 10, 1\)$"),
        ("one", r"floats of .* float32 of shape \(10,\)$"),
        ("classes", r"floats of .* int64 of shape \(1,\)$"),
        ("integers", r"floats of .* int64 of shape \(1, 10\)$"),
    ],
)
def test_a_network_whose_outputs_are_no_logits_is_refused_before_a_run(returns: str, says: str) -> None:
    options = ("model._target_=tests.vision.test_train.Returning", f"+model.returns={returns}")
    with pytest.raises(ConfigError, match=f"^model=small_resnet must return {says}"):
        trainer.Task.from_config(VISION.compose(*options))


@pytest.mark.parametrize("returns", ["logits", "more"])
def test_a_network_may_have_more_outputs_than_there_are_classes(returns: str) -> None:
    options = ("model._target_=tests.vision.test_train.Returning", f"+model.returns={returns}")
    trainer.Task.from_config(VISION.compose(*options))


class Lazy(nn.Module):
    def __init__(self, num_classes: int, **sizes: int) -> None:
        super().__init__()
        self.head = nn.LazyLinear(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


def test_a_network_whose_weights_have_no_shape_yet_is_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"^model=small_resnet has lazy layers, and head\.weight has no shape yet: "):
        trainer.Task.from_config(VISION.compose("model._target_=tests.vision.test_train.Lazy"))


@pytest.mark.parametrize("options", [("epochs=1",), ("epochs=10", "benchmark.ratio=1"), ("epochs=10", "warmup=0.5")])
def test_the_authors_schedule_is_refused_where_it_would_not_train(options: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^schedule=reference begins at rate 0 .*take schedule=warmup$"):
        trainer.Task.from_config(VISION.compose("benchmark=warm_start", "schedule=reference", *options))


def test_evaluation_leaves_frozen_parts_in_evaluation_mode() -> None:
    task = trainer.Task.from_config(VISION.compose(*VIEWING, "memory_format=contiguous"))
    learner = trainer.Learner.new(task)
    learner.model.drop.eval()
    evaluate(task, learner)
    assert learner.model.training
    assert not learner.model.drop.training


def test_class_incremental_accuracy_is_on_the_classes_seen_and_on_all() -> None:
    """Against plain counting; of ten classes in four phases two never come, and are in "all"."""
    task = trainer.Task.from_config(
        VISION.compose("benchmark=class_incremental", "benchmark.chunks=4", "eval_batch_size=50", "seed=3")
    )
    learner = trainer.Learner.new(task)
    images, labels = task.test_batch(0, torch.arange(len(task.data.test_labels)))
    logits = learner.model.eval()(images).detach()
    right = (logits.argmax(1) == labels).double()
    found = []
    for learner.phase, classes in enumerate((2, 4, 6, 8)):
        accuracy = evaluate(task, learner)
        seen = task.phases[learner.phase].test
        assert len(labels[seen].unique()) == classes
        assert accuracy == {
            "test/loss": pytest.approx(nn.functional.cross_entropy(logits[seen], labels[seen]).item()),
            "test/accuracy": pytest.approx(right[seen].mean().item()),
            "test/accuracy_all": pytest.approx(right.mean().item()),
        }
        found.append(accuracy["test/accuracy"])
    assert len(set(found)) > 1, "an accuracy that does not depend on the classes tests nothing"


def test_narrow_residual_networks_keep_their_images_contiguous_on_a_cpu() -> None:
    """oneDNN's kernel for channels-last images is wrong there on some CPUs; their gradients are those of float64."""
    formats = {}
    for width in (4, 8):
        task = trainer.Task.from_config(VISION.compose("dataset=digits", f"model.width={width}", "device=cpu"))
        formats[width] = task.memory_format
        learner, (images, labels) = trainer.Learner.new(task), next(trainer.batches(task, 0))
        exact = copy.deepcopy(learner.model).double()
        task.loss(learner.model(images), labels).backward()
        task.loss(exact(images.double()), labels).backward()
        for (name, parameter), truth in zip(learner.model.named_parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.double(), truth.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert formats == {4: torch.contiguous_format, 8: torch.channels_last}


def test_a_full_reset_needs_no_first_phase(tmp_path: Path) -> None:
    """Its second phase is the same, row by row and bit by bit."""
    options = ("benchmark=warm_start", "method=full_reset", "variant=fire_paper", "model.norm=true")
    whole, second = (
        [row for row in rows(SMALL.run(tmp_path / skip, *options, f"skip_first_phase={skip}")) if "kind" not in row]
        for skip in ("false", "true")
    )
    assert len(second) == len(whole) / 2
    assert second == whole[len(second) :]


@pytest.mark.parametrize("options", [("method=fire",), ("method=full_reset", "benchmark=random_labels")])
def test_other_methods_need_their_first_phase(options: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="skip_first_phase=true needs a method that resets"):
        Task.from_config(SMALL.compose("skip_first_phase=true", *options))
