"""Load the network of a trained vision run, for `harness.load`."""

import functools
from typing import Any

from torch import Tensor

from harness.trained.load import Trained
from vision.learner import Learner
from vision.phase import evaluate
from vision.task import Task


def load(task: Task, state: dict[str, Any]) -> Trained:
    """Return the network of a checkpoint's state, with the normalisation of its test images."""
    learner = Learner.new(task)
    learner.load_networks(state)
    learner.phase, learner.step = state["phase"], state["step"]
    learner.model.eval()
    return Trained(
        program="vision",
        config=task.config,
        modules=learner.net.modules,
        preprocess=functools.partial(normalised, task),
        evaluate=functools.partial(evaluate, task, learner),
        row=state["row"],
        step=state["step"],
        task=task,
        learner=learner,
    )


def normalised(task: Task, images: Tensor) -> Tensor:
    """Normalise stored images, uint8 (n, C, H, W), by the statistics of the test images; float32 (n, C, H, W)."""
    return task.data.normalise_test(images.to(task.device)).contiguous(memory_format=task.memory_format)
