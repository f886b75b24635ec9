"""What the loop of `rl.sac` does between its updates: actions, rows, evaluation, what methods see."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.methods import Context, Net
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import At
from harness.training.firing import start
from harness.training.measure import check_finite
from rl.common import checkpoint
from rl.common.boundary import METRICS
from rl.common.replay_store import RingStore
from rl.sac.learner import Learner, share_state
from rl.sac.probe import diagnose, pass_probe, probe_batch, probe_loss, trigger_losses
from rl.sac.task import Task
from rl.sac.update import NAMES, normalised, squash
from rl.sac.workers import play_episodes

LOOKED_AT = 8192  # transitions that a method gets, in batches


def save(task: Task, learner: Learner, run: Run, replay_store: RingStore) -> None:
    """Write a checkpoint, unless a weight is not finite."""
    check_finite(learner.step, learner.sums, *learner.net.parameters())
    checkpoint.write(run, replay_store, learner, finished=learner.step >= task.total_steps)


def start_trigger(task: Task, learner: Learner) -> Net:
    """Make the run's trigger ready, if it has one; the networks that it measures, each critic alone."""
    seen = learner.separate
    start(
        learner,
        net=seen,
        metrics=METRICS,
        total_steps=task.total_steps,
        after=task.steps_before_trigger,
        losses=functools.partial(trigger_losses, task, learner, seen),
        probe=functools.partial(pass_probe, task, learner, seen),
    )
    return seen


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
    if learner.counted:
        check_finite(learner.step, learner.sums)
    means = (learner.sums / max(learner.counted, 1)).tolist()
    row: dict[str, Any] = {
        "step": learner.step,
        "phase": learner.phase,
        "env_steps": learner.step * task.control.action_repeat,
        "updates": learner.updates,
        **evaluate(task, learner),
        **(dict(zip(NAMES, means, strict=True)) if learner.counted else {}),
        "train/temperature": learner.temperature().item(),
        **({"train/return": float(np.mean(learner.returns))} if learner.returns else {}),
        "lr": task.config.lr,
        "seconds": round(learner.seconds, 3),
        "seconds/waiting": round(learner.waited, 3),
    }
    if task.tasks is not None:
        phase, running = task.phases[learner.phase], [worker.total for worker in learner.workers.workers]
        row |= learner.of_tasks.row(phase.end - phase.start, running, learner.step == phase.end)
        if task.config.metrics != "off" and learner.counted:
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


def summarise(learner: Learner) -> dict[str, Any]:
    """What is kept of a run that has ended."""
    counts = {"steps": learner.step, "updates": learner.updates, "seconds": learner.seconds}
    return {"eval/return": learner.row["eval/return"], **learner.of_tasks.summary(), **counts}
