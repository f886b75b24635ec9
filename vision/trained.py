"""Load the network of a trained vision run, for `harness.load`."""

import functools
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from harness.trained.load import Trained
from vision.learner import Learner
from vision.phase import evaluate
from vision.task import Task


def load(config: DictConfig, state: dict[str, Any]) -> Trained:
    """Return the network of a checkpoint's state, with the normalisation of its test images."""
    task = Task.from_config(config)
    learner = Learner.new(task)
    preprocess, measure = functools.partial(normalised, task), functools.partial(evaluate, task, learner)
    return Trained.of("vision", task, learner, state, preprocess, measure)


def normalised(task: Task, images: Tensor) -> Tensor:
    """Normalise stored images, uint8 (n, C, H, W), by the statistics of the test images; float32 (n, C, H, W)."""
    return task.data.normalise_test(images.to(task.device)).contiguous(memory_format=task.memory_format)
