"""A trained SAC agent, for `harness.load`."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.trained.load import Trained
from rl.sac.learner import Learner, normalised
from rl.sac.phase import evaluate
from rl.sac.task import Task


def load(task: Task, state: dict[str, Any]) -> Trained:
    """Return the actor and the critics of a checkpoint's state, with the statistics that normalise observations."""
    learner = Learner.new(task)
    learner.load_networks(state)
    learner.phase, learner.step = state["phase"], state["step"]
    learner.statistics.load_state_dict(state["statistics"])
    for module in learner.net.modules.values():
        module.eval()
    return Trained(
        program="sac",
        config=task.config,
        modules=learner.net.modules,
        preprocess=functools.partial(observed, task, learner),
        evaluate=functools.partial(evaluate, task, learner, learner.phase),
        row=state["row"],
        step=state["step"],
        task=task,
        learner=learner,
    )


def observed(task: Task, learner: Learner, observations: np.ndarray | Tensor) -> Tensor:
    """Return observations (n, o) as the networks take them: float32, normalised by the statistics of the run."""
    values = torch.as_tensor(observations, dtype=torch.float32, device=task.device)
    return normalised(values, learner.statistics.tensors(task.device))
