"""What the loop of `rl.sac` does between its updates: rows, evaluation, measurements, the contexts of methods."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fire_core.methods import Context
from harness.training import seeding
from harness.training.boundary import At, seed_of_new_networks
from harness.training.measure import check_finite, weight_numbers
from harness.training.plasticity import plasticity
from rl.common.learner import start_row
from rl.sac.learner import NAMES, Learner, normalise, normalised
from rl.sac.task import Task
from rl.sac.transitions import Batch, batch_at
from rl.sac.workers import play_episodes

METHOD_TRANSITIONS = 8192  # transitions that a method is given, in batches
PROBE = 512  # transitions on which plasticity is measured


@torch.inference_mode()
def policy(task: Task, learner: Learner, observations: np.ndarray, noise: Tensor | None = None) -> np.ndarray:
    """Return the policy's actions with this noise, or its mean actions, (k, a) in [-1, 1], for observations (k, o).

    The pass is made in evaluation mode, in which dropout and batch norm change nothing between acting and evaluation;
    also, methods watch training passes and must not see it.

    Raises:
        Diverged: an action is not finite, as the networks have diverged; no environment gets it.
    """
    x = normalised(torch.from_numpy(observations).to(task.device), learner.statistics.tensors(task.device))
    with learner.net.mode(training=False):
        action = torch.tanh(learner.actor(x)[0]) if noise is None else learner.actor.sample(x, noise.to(task.device))[0]
    action = action.cpu()
    check_finite(learner.step, action)  # the environments wait for the actions on the CPU anyway
    return action.numpy()


def evaluate(task: Task, learner: Learner, phase: int) -> dict[str, float]:
    """Play whole episodes with the policy's mean actions, of a stream in the task `phase`; return their mean scores."""
    for worker in task.eval_envs:
        worker.choose(phase)
    results = play_episodes(task.eval_envs, functools.partial(policy, task, learner))
    returns = np.array([total for total, _ in results])
    return {
        "eval/return": float(returns.mean()),
        "eval/return_std": float(returns.std()),
        "eval/length": float(np.mean([length for _, length in results])),
    }


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """Return the row of this step, with an evaluation, and begin new sums for the next row."""
    row = start_row(task, learner)
    row |= {
        "env_steps": learner.step * task.control.action_repeat,
        **evaluate(task, learner, learner.phase),
        "train/temperature": learner.temperature().item(),
        "lr": task.config.lr,
    }
    if learner.counted:
        row |= zip(NAMES, (learner.sums / learner.counted).tolist(), strict=True)
        if task.is_stream and task.config.metrics != "off":
            row |= {f"plasticity/{key}": value for key, value in diagnose(task, learner).items()}
    learner.clear_sums()
    return row


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """Return the context of a method that acts at `at`; its batches come from `probe_batch`.

    At a boundary the method gets the optimizers only with boundary.optimizer=forget, where it may change their state;
    with keep and new the loop alone decides on them.
    """
    gets_optimizers = at in ("row", "step") or task.config.boundary.optimizer == "forget"
    seed_names = ("firing", learner.turns) if at == "firing" else ("method", learner.phase, learner.updates)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(task.config.seed, "look", learner.phase, learner.turns)
        for _ in range(0, METHOD_TRANSITIONS, task.config.batch_size):
            yield probe_batch(task, learner, sample(learner, task.config.batch_size, generator), generator)

    return Context(
        phase=learner.phase,
        step=learner.updates,
        generator=seeding.generator(task.config.seed, *seed_names),
        batches=batches,
        loss=functools.partial(probe_loss, task, learner),
        optimizers=learner.optimizer_parts if gets_optimizers else [],
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *seed_of_new_networks(learner, at)),
    )


def sample(learner: Learner, size: int, generator: torch.Generator) -> Batch:
    """Draw one batch of transitions of the replay."""
    return batch_at(learner.replay.sample(1, size, generator), 0)


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass some transitions of the replay through the networks, for a trigger that looks at activations."""
    batch = sample(learner, PROBE, seeding.generator(task.config.seed, "trigger", learner.turns))
    observation = normalised(batch.observation, learner.statistics.tensors(task.device))
    learner.actor(observation)
    for critic in learner.critics:
        critic(observation, batch.action)


@torch.no_grad()
def probe_batch(task: Task, learner: Learner, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Turn B transitions into inputs and targets of `probe_loss`, with the targets of `rl.sac.train.train_step`.

    Returns:
        Inputs (B, o + a): normalised observations and actions, concatenated. Targets (B, 1 + a): the critics' target
        value and the noise with which the actor samples its own action, concatenated.
    """
    batch = normalise(task, learner, batch)
    noise = torch.randn(2, len(batch.reward), task.actions, generator=generator).to(task.device)
    with learner.net.mode(training=False):
        next_action, next_log_p = learner.actor.sample(batch.next_observation, noise[0])
    next_values = [target(batch.next_observation, next_action) for target in learner.target_critics]
    next_value = torch.stack(next_values).amin(0) - learner.temperature() * next_log_p
    targets = batch.reward + task.gamma * (1 - batch.terminated) * next_value
    return torch.cat([batch.observation, batch.action], 1), torch.cat([targets[:, None], noise[1]], 1)


def probe_loss(task: Task, learner: Learner, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of actor loss and critic loss, as in `rl.sac.train.train_step`, for methods and measurements.

    The gradient of each network is that of its own loss, since the critics' weights are constants in the actor's loss.

    Args:
        task: the task of the run.
        learner: the training state; nothing in it changes.
        inputs: observations and actions (B, o + a) from `probe_batch`.
        targets: target values and noise (B, 1 + a) from `probe_batch`.
    """
    observation, old_action = inputs.split([task.observations, task.actions], 1)
    target_value, noise = targets.split([1, task.actions], 1)
    action, log_p = learner.actor.sample(observation, noise)
    values = []
    for critic in learner.critics:
        weights = {name: parameter.detach() for name, parameter in critic.named_parameters()}
        values.append(functional_call(critic, weights, (observation, action)))
    actor_loss = (learner.temperature().detach() * log_p - torch.stack(values).amin(0)).mean()
    old_values = torch.stack([critic(observation, old_action) for critic in learner.critics])
    loss: Tensor = actor_loss + (old_values - target_value[:, 0]).square().mean(1).sum()
    return loss


def measure(task: Task, learner: Learner, task_ended: bool) -> dict[str, float]:
    """Return measures of the networks' plasticity, taken on transitions of the replay.

    Where a task of a stream has ended (`task_ended`), they include `previous_return`, the return of the mean actions
    in that task. Measured before and after the method acts, it shows how much the act made the agent forget.
    """
    generator = seeding.generator(task.config.seed, "probe", learner.phase)
    inputs, targets = probe_batch(task, learner, sample(learner, PROBE, generator), generator)
    loss = functools.partial(probe_loss, task, learner, inputs, targets)
    numbers = plasticity(learner.net, loss, task.config.metrics)
    if task_ended and task.is_stream and task.config.metrics != "off":
        numbers["previous_return"] = evaluate(task, learner, learner.phase - 1)["eval/return"]
    return numbers


def diagnose(task: Task, learner: Learner) -> dict[str, float]:
    """Return measures of plasticity for a row of a stream; nothing in the networks changes.

    Returns:
        dormant_ratio and dfi over actor and critics, and the ranks of the features of the last critic's head
        (`plasticity`); gradient_norm and gradient_norm_actor, the gradient norms of the critics' and of the actor's
        loss on transitions of the replay; td_fresh and td_old, the mean absolute errors of the critics' values on the
        newest and on the oldest tenth of the transitions in the replay.
    """
    net, generator = learner.net, seeding.generator(task.config.seed, "diagnose", learner.turns)
    inputs, targets = probe_batch(task, learner, sample(learner, PROBE, generator), generator)
    loss = functools.partial(probe_loss, task, learner, inputs, targets)
    numbers = plasticity(net, loss, "cheap", ranks=True) | weight_numbers(net, "cheap")
    with net.mode(training=False):
        for name, module in (("gradient_norm", learner.critics), ("gradient_norm_actor", learner.actor)):
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            numbers[name] = torch.nn.utils.get_total_norm(
                torch.autograd.grad(loss(), trained, materialize_grads=True)
            ).item()
        for name, ages in (("td_old", (0.0, 0.1)), ("td_fresh", (0.9, 1.0))):
            batch = learner.replay.sample_part(PROBE, generator, ages)
            inputs, targets = probe_batch(task, learner, batch, generator)
            observation, action = inputs.split([task.observations, task.actions], 1)
            with torch.no_grad():
                values = torch.stack([critic(observation, action) for critic in learner.critics])
            numbers[name] = (values - targets[:, 0]).abs().mean().item()
    return numbers
