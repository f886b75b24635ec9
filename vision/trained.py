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
    """Return the network of a checkpoint's state, with what it was given images by."""
    task = Task.from_config(config)
    learner = Learner.new(task)
    preprocess = functools.partial(normalised, task, state["phase"])
    measure = functools.partial(evaluate, task, learner)
    return Trained.of("vision", task, learner, state, preprocess, measure)


def normalised(task: Task, phase: int, images: Tensor) -> Tensor:
    """Return stored images as the network sees them in phase `phase`, whose pixels a stream may have permuted.

    Args:
        task: the task of the run.
        phase: number of the phase.
        images: (n, C, H, W), stored as the training images are: uint8, or float32 of the user's own range.

    Returns:
        float32 (n, C, H, W), normalised by the statistics of the test images.

    Raises:
        ValueError: the images are not of the type and the sizes of those that the network was trained on.
    """
    stored = task.data.train_images
    if images.dtype != stored.dtype or images.shape[1:] != stored.shape[1:]:
        raise ValueError(
            f"the network was trained on {stored.dtype} (n, {', '.join(map(str, stored.shape[1:]))}), "
            f"and these images are {images.dtype} {tuple(images.shape)}"
        )
    images = images.to(task.device)
    if (change := task.phases[phase].change_images) is not None:
        images = change(images)
    return task.data.normalise_test(images).contiguous(memory_format=task.memory_format)
