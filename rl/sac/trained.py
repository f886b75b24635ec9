"""A trained SAC agent, for `harness.load`."""

import functools
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from harness.trained.load import Trained
from rl.sac.learner import Learner, normalised
from rl.sac.phase import evaluate
from rl.sac.task import Task


def load(config: DictConfig, state: dict[str, Any]) -> Trained:
    """Return the actor and the critics of a checkpoint's state, with the statistics that normalise observations."""
    task = Task.from_config(config, trains=False)
    learner = Learner.new(task)
    learner.close()  # the environments of training; an evaluation makes its own
    learner.statistics.load_state_dict(state["statistics"])
    preprocess = functools.partial(observed, task, learner)
    return Trained.of(
        "sac", task, learner, state, preprocess, functools.partial(evaluate, task, learner, state["phase"])
    )


def observed(task: Task, learner: Learner, observations: np.ndarray | Tensor) -> Tensor:
    """Return observations (n, o) as the networks take them: float32, normalised by the statistics of the run.

    Raises:
        ValueError: an observation does not have as many numbers as those that the networks were trained on.
    """
    values = torch.as_tensor(observations, dtype=torch.float32, device=task.device)
    if values.ndim != 2 or values.shape[1] != task.observations:
        raise ValueError(
            f"the networks were trained on observations (n, {task.observations}), and these are {tuple(values.shape)}"
        )
    return normalised(values, learner.statistics.tensors(task.device))
