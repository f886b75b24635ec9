"""Load the network of a trained DQN agent, for `harness.load`."""

import functools
from typing import Any

import torch
from torch import Tensor

from harness.trained.load import Trained
from rl.dqn.learner import Learner
from rl.dqn.phase import evaluate
from rl.dqn.task import Task


def load(task: Task, state: dict[str, Any]) -> Trained:
    """Return the Q-network of a checkpoint's state."""
    learner = Learner.new(task)
    learner.load_networks(state)
    learner.phase, learner.step = state["phase"], state["step"]
    learner.q.eval()
    return Trained(
        program="dqn",
        config=task.config,
        modules=learner.net.modules,
        preprocess=functools.partial(observed, task),
        evaluate=functools.partial(evaluate, task, learner, learner.phase),
        row=state["row"],
        step=state["step"],
        task=task,
        learner=learner,
    )


def observed(task: Task, observations: Tensor) -> Tensor:
    """Return stacked observations (n, stack, ...) on the network's device; the network scales bytes itself."""
    return torch.as_tensor(observations).to(task.device)
