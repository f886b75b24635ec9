"""What the loop of `rl.sac` does between its updates: actions, rows, evaluation, what methods see."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.methods import Context
from harness.training import seeding
from harness.training.boundary import At
from rl.common.learner import start_row
from rl.sac.learner import Learner, share_state
from rl.sac.probe import diagnose, probe_batch, probe_loss
from rl.sac.task import Task
from rl.sac.update import NAMES, normalised, squash
from rl.sac.workers import play_episodes

LOOKED_AT = 8192  # transitions that a method gets, in batches


@torch.inference_mode()
def policy(task: Task, learner: Learner, observations: np.ndarray, noise: Tensor | None = None) -> np.ndarray:
    """The policy's actions with this noise, or its mean actions, (k, actions)."""
    x = normalised(torch.from_numpy(observations).to(task.device), learner.statistics.tensors(task.device))
    centre, log_std = learner.actor(x)
    action = torch.tanh(centre) if noise is None else squash(centre, log_std, noise.to(task.device))[0]
    return action.cpu().numpy()


def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Return and length of whole episodes with the policy's mean actions."""
    for worker in task.eval_envs:
        worker.choose(learner.phase)
    results = play_episodes(task.eval_envs, functools.partial(policy, task, learner))
    returns = np.array([total for total, _ in results])
    return {
        "eval/return": float(returns.mean()),
        "eval/return_std": float(returns.std()),
        "eval/length": float(np.mean([length for _, length in results])),
    }


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """The row at this step, with an evaluation."""
    row = start_row(task, learner, [worker.total for worker in learner.workers.workers])
    row |= {
        "env_steps": learner.step * task.control.action_repeat,
        **evaluate(task, learner),
        "train/temperature": learner.temperature().item(),
        "lr": task.config.lr,
    }
    if learner.counted:
        row |= zip(NAMES, (learner.sums / learner.counted).tolist(), strict=True)
        if task.tasks is not None and task.config.metrics != "off":
            row |= {f"plasticity/{key}": value for key, value in diagnose(task, learner).items()}
    learner.clear_sums()
    return row


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """What a method is told when it acts: inputs are (batch, observations + actions), targets the critics' y.

    After rows and steps it acts on the separate networks. At a boundary it acts on the batched ones, and gets their
    optimizers only if these are to forget, as those that are kept or new are not its business.
    """
    if separate := at in ("row", "step"):
        optimizers = share_state(learner)
    else:
        forgets = task.config.boundary.optimizer == "forget"
        optimizers = learner.optimizer_parts if forgets else []
    names = ("firing", learner.turns) if at == "firing" else ("method", learner.phase, learner.turns)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(task.config.seed, "look", learner.phase, learner.turns)
        for _ in range(0, LOOKED_AT, task.config.batch_size):
            yield probe_batch(task, learner, task.config.batch_size, generator)

    return Context(
        phase=learner.phase,
        step=learner.updates,
        generator=seeding.generator(task.config.seed, *names),
        batches=batches,
        loss=functools.partial(probe_loss, task, learner.separate if separate else learner.net),
        optimizers=optimizers,
        step_loss=step_loss,
    )
