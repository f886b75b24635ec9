"""Load the network of a trained DQN agent, for `harness.load`."""

import functools
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from harness.trained.load import Trained
from rl.dqn.learner import Learner
from rl.dqn.phase import evaluate
from rl.dqn.task import Task


def load(config: DictConfig, state: dict[str, Any]) -> Trained:
    """Return the Q-network of a checkpoint's state."""
    task = Task.from_config(config, trains=False)
    learner = Learner.new(task)
    learner.close()  # the environments of training; an evaluation makes its own
    preprocess, measure = functools.partial(observed, task), functools.partial(evaluate, task, learner, state["phase"])
    return Trained.of("dqn", task, learner, state, preprocess, measure)


def observed(task: Task, observations: np.ndarray | Tensor) -> Tensor:
    """Return observations as the network takes them, on its device.

    Args:
        task: the task of the run.
        observations: (n, stack, ...), the last `stack` observations of each environment, the newest last; bytes of
            games of pixels, which the network scales itself, and numbers of other environments.

    Raises:
        ValueError: they are not of the sizes and the type of those that the network was trained on.
    """
    values, emulator = torch.as_tensor(observations), task.emulator
    if values.shape[1:] != (emulator.stack, *emulator.frame) or (values.dtype != emulator.dtype == torch.uint8):
        sizes = ", ".join(map(str, ("n", emulator.stack, *emulator.frame)))
        raise ValueError(
            f"the network was trained on {emulator.dtype} ({sizes}), the last {emulator.stack} observations of n "
            f"environments, and these are {values.dtype} {tuple(values.shape)}"
        )
    return values.to(task.device, emulator.dtype)
