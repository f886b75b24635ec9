"""Load the network of a trained DQN agent, for `harness.load`."""

import functools
from typing import Any

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


def observed(task: Task, observations: Tensor) -> Tensor:
    """Return stacked observations (n, stack, ...) on the network's device; the network scales bytes itself."""
    return torch.as_tensor(observations).to(task.device)
