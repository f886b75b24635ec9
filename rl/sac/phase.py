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
from harness.training.firing import start
from harness.training.measure import check_finite
from rl.common import checkpoint
from rl.common.boundary import METRICS
from rl.common.replay_store import RingStore
from rl.sac.learner import Learner, separated
from rl.sac.probe import diagnose, pass_probe, probe_batch, probe_loss, trigger_losses
from rl.sac.task import Task
from rl.sac.update import NAMES, normalised, squash
from rl.sac.workers import play_episodes


def save(task: Task, learner: Learner, run: Run, replay_store: RingStore) -> None:
    """Write a checkpoint, unless a weight is not finite."""
    check_finite(learner.step, learner.sums, *learner.net.parameters())
    checkpoint.write(run, replay_store, learner, finished=learner.step >= task.total_steps)


def start_trigger(task: Task, learner: Learner) -> Net:
    """Make the run's trigger ready, if it has one; the networks that it measures, each critic alone."""
    seen = learner.net if learner.trigger is None else separated(learner)[0]
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


def decisions_made(task: Task, learner: Learner) -> int:
    """By all environments, since the replay began to fill."""
    return (learner.phase_step if task.empties_replay else learner.step) * task.config.num_envs


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
        "env_steps": learner.step * task.repeat,
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


def make_context(task: Task, learner: Learner, net: Net | None = None) -> Context:
    """The context of a method: inputs are (batch, observations + actions), targets the critics' y.

    Args:
        task: what is fixed.
        learner: as it is now.
        net: what the method acts on; None: the learner's own networks.
    """

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(task.config.seed, "look", learner.phase, learner.step)
        while True:
            yield probe_batch(task, learner, task.config.batch_size, generator)

    return Context(
        phase=learner.phase,
        step=learner.updates,
        generator=seeding.generator(task.config.seed, "method", learner.phase, learner.step),
        batches=batches,
        loss=functools.partial(probe_loss, task, net or learner.net),
    )


def summarise(learner: Learner) -> dict[str, Any]:
    """What is kept of a run that has ended."""
    counts = {"steps": learner.step, "seconds": learner.seconds}
    return {"eval/return": learner.row["eval/return"], **learner.of_tasks.summary(), **counts}
