"""What the loop of `rl.sac` does between its updates: rows, evaluation, measurements, what methods see."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fire_core.methods import Context
from harness.training import seeding
from harness.training.boundary import At, moment_of
from harness.training.measure import weight_numbers
from harness.training.plasticity import plasticity
from rl.common.learner import start_row
from rl.sac.learner import NAMES, Learner, normalised
from rl.sac.task import Task
from rl.sac.transitions import Batch, batch_at
from rl.sac.workers import play_episodes

LOOKED_AT = 8192  # transitions that a method gets, in batches
PROBE = 512  # transitions on which plasticity is measured


@torch.inference_mode()
def policy(task: Task, learner: Learner, observations: np.ndarray, noise: Tensor | None = None) -> np.ndarray:
    """Return the policy's actions with this noise, or its mean actions, (k, a) in [-1, 1], for observations (k, o)."""
    x = normalised(torch.from_numpy(observations).to(task.device), learner.statistics.tensors(task.device))
    with learner.net.mode(training=False):  # a method that watches training passes must not see this one
        action = torch.tanh(learner.actor(x)[0]) if noise is None else learner.actor.sample(x, noise.to(task.device))[0]
    return action.cpu().numpy()


def evaluate(task: Task, learner: Learner, phase: int) -> dict[str, float]:
    """Return and length of whole episodes with the policy's mean actions; in a stream these are of the task `phase`."""
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
    """The row at this step, with an evaluation."""
    row = start_row(task, learner)
    row |= {
        "env_steps": learner.step * task.control.action_repeat,
        **evaluate(task, learner, learner.phase),
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
    """What a method is told when it acts; batches are `probe_batch`'s.

    At a boundary it gets the optimizers only if these are to forget, as those that are kept or new are not its
    business.
    """
    sees = at in ("row", "step") or task.config.boundary.optimizer == "forget"
    names = ("firing", learner.turns) if at == "firing" else ("method", learner.phase, learner.updates)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(task.config.seed, "look", learner.phase, learner.turns)
        for _ in range(0, LOOKED_AT, task.config.batch_size):
            yield probe_batch(task, learner, sample(learner, task.config.batch_size, generator), generator)

    return Context(
        phase=learner.phase,
        step=learner.updates,
        generator=seeding.generator(task.config.seed, *names),
        batches=batches,
        loss=functools.partial(probe_loss, task, learner),
        optimizers=learner.optimizer_parts if sees else [],
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *moment_of(learner, at)),
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
        (B, o + a), normalised observations beside actions, and (B, 1 + a), what the critics are to learn beside the
        noise of the action that the actor takes there.
    """
    statistics = learner.statistics.tensors(task.device)
    noise = torch.randn(2, len(batch.reward), task.actions, generator=generator).to(task.device)
    observation, next_observation = (normalised(x, statistics) for x in (batch.observation, batch.next_observation))
    with learner.net.mode(training=False):  # no training pass, which a method sees
        next_action, next_log_p = learner.actor.sample(next_observation, noise[0])
    next_values = [target(next_observation, next_action) for target in learner.target_critics]
    next_value = torch.stack(next_values).amin(0) - learner.temperature() * next_log_p
    target_value = batch.reward + task.gamma * (1 - batch.terminated) * next_value
    return torch.cat([observation, batch.action], 1), torch.cat([target_value[:, None], noise[1]], 1)


def probe_loss(task: Task, learner: Learner, inputs: Tensor, targets: Tensor) -> Tensor:
    """The losses of `rl.sac.train.train_step`, outside of a step: what methods and measurements look at.

    That of the actor and that of the critics are added up; each network has the gradient of its own.

    Args:
        task: what is fixed.
        learner: with the networks.
        inputs: as `probe_batch` gives them.
        targets: likewise.
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
    """How plastic the networks are, on transitions of the replay.

    Where a task of a stream has ended (`task_ended`), `previous_return` is the return of the mean actions in it: how
    much of what was learned is there before and after the method acts.
    """
    generator = seeding.generator(task.config.seed, "probe", learner.phase)
    inputs, targets = probe_batch(task, learner, sample(learner, PROBE, generator), generator)
    loss = functools.partial(probe_loss, task, learner, inputs, targets)
    numbers = plasticity(learner.net, loss, task.config.metrics)
    if task_ended and task.tasks is not None and task.config.metrics != "off":
        numbers["previous_return"] = evaluate(task, learner, learner.phase - 1)["eval/return"]
    return numbers


def diagnose(task: Task, learner: Learner) -> dict[str, float]:
    """How plastic the networks of a stream are now; nothing in them changes.

    Returns:
        dormant_ratio, dfi, and the ranks of the features of the last critic's head (`plasticity`), over the actor and
        each critic; gradient_norm and gradient_norm_actor, of the critics' and the actor's loss on transitions of the
        replay; td_fresh and td_old: the mean absolute errors of the critics' values on the newest and on the oldest
        tenth of the transitions that the replay holds.
    """
    net, generator = learner.net, seeding.generator(task.config.seed, "diagnose", learner.turns)
    inputs, targets = probe_batch(task, learner, sample(learner, PROBE, generator), generator)
    loss = functools.partial(probe_loss, task, learner, inputs, targets)
    numbers = plasticity(net, loss, "cheap", ranks=True) | weight_numbers(net, "cheap")
    with net.mode(training=False):
        for name, module in (("gradient_norm", learner.critics), ("gradient_norm_actor", learner.actor)):
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            numbers[name] = torch.nn.utils.get_total_norm(torch.autograd.grad(loss(), trained)).item()
        for name, part in (("td_old", (0.0, 0.1)), ("td_fresh", (0.9, 1.0))):
            batch = learner.replay.sample_part(PROBE, generator, part)
            inputs, targets = probe_batch(task, learner, batch, generator)
            observation, action = inputs.split([task.observations, task.actions], 1)
            with torch.no_grad():
                values = torch.stack([critic(observation, action) for critic in learner.critics])
            numbers[name] = (values - targets[:, 0]).abs().mean().item()
    return numbers
