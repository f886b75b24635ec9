"""The parts of the loop of `rl.dqn` besides its updates: evaluation, measurements, rows, and what methods are given."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core.methods import Context, Net
from harness.training import seeding
from harness.training.boundary import At, seed_of_new_networks
from harness.training.measure import weight_numbers
from harness.training.plasticity import plasticity
from rl.common.learner import start_row
from rl.dqn.changing import Changing
from rl.dqn.evaluation import play
from rl.dqn.frames import Batch
from rl.dqn.learner import NAMES, Learner, greedy_actions, to_device
from rl.dqn.task import Task, make_env

PROBE = 256  # transitions on which plasticity is measured
ATARI = "rl.dqn.atari.make"
BATCHES = 16  # batches that a method is given, at the midpoint or after a row


def evaluate(task: Task, learner: Learner, phase: int) -> dict[str, float]:
    """Return the scores of nearly greedy play (`play`) in new environments; of a stream, those of the task `phase`."""
    options, env_options = task.config.eval, task.config.env
    game = env_options["game"] if task.benchmark is None else task.benchmark.name_of(phase, env_options["game"])
    game = game if env_options["_target_"] == ATARI else ""  # MinAtar's games have the same names but other scores
    policy = functools.partial(greedy_actions, task, learner)
    envs = options.num_envs if options.episodes is None else options.episodes
    with contextlib.closing(make_env(task.config, envs, f"eval/{learner.step}")) as env:
        if isinstance(env.emulator, Changing):
            env.emulator.begin_task(phase)
        return play(policy, env, options.steps if options.episodes is None else None, options.epsilon, game)


def make_row(task: Task, learner: Learner, with_evaluation: bool) -> dict[str, Any]:
    """Return the row of the log at this step, and set the sums to zero."""
    row = start_row(task, learner)
    row |= {"env_steps": learner.step, "train/episodes": len(learner.returns)}
    if learner.counted:
        row |= {name: total / learner.counted for name, total in zip(NAMES, learner.sums.tolist(), strict=True)}
    if task.is_stream and task.config.metrics != "off" and learner.updates:
        row |= {f"plasticity/{key}": value for key, value in diagnose(task, learner).items()}
    if with_evaluation:
        row |= evaluate(task, learner, learner.phase)
    learner.clear_sums()
    return row


def diagnose(task: Task, learner: Learner) -> dict[str, float]:
    """Measure how plastic the network of a stream is, without changing anything.

    Returns:
        stable_rank, effective_rank, srank and dormant_ratio (`plasticity`), dfi, the gradient_norm of the loss on a
        batch of the replay, and td_fresh and td_old, the mean absolute errors of the values on the newest and on the
        oldest tenth of the transitions in the replay.
    """
    generator, net = seeding.generator(task.config.seed, "diagnose", learner.step), learner.net
    loss = functools.partial(probe_loss, net, *probe_batch(task, learner, learner.replay.sample(PROBE, generator)))
    numbers = plasticity(net, loss, "cheap", ranks=True) | weight_numbers(net, "cheap")
    trained = [parameter for parameter in learner.q.parameters() if parameter.requires_grad]
    with net.mode(training=False):
        gradients = torch.autograd.grad(loss(), trained, materialize_grads=True)
        numbers["gradient_norm"] = torch.nn.utils.get_total_norm(gradients).item()
        for name, part in (("td_old", (0.0, 0.1)), ("td_fresh", (0.9, 1.0))):
            transitions = learner.replay.gather(*learner.replay.draw(PROBE, generator, part))
            observations, targets = probe_batch(task, learner, transitions)
            with torch.no_grad():
                errors = action_values(learner.q, observations, targets[:, 0]) - targets[:, 1]
            numbers[name] = errors.abs().mean().item()
    return numbers


def measure(task: Task, learner: Learner, task_ended: bool) -> dict[str, float]:
    """Measure how plastic the network is, on transitions of the replay.

    If a task of a stream has ended (`task_ended`), `previous_return` is the return of nearly greedy play in this task.
    It shows how much of what was learned the method leaves.
    """
    generator = seeding.generator(task.config.seed, "probe", learner.phase)
    net = learner.net
    loss = functools.partial(probe_loss, net, *probe_batch(task, learner, learner.replay.sample(PROBE, generator)))
    numbers = plasticity(net, loss, task.config.metrics)
    if task_ended and task.is_stream and task.config.metrics != "off":
        evaluated = evaluate(task, learner, learner.phase - 1)
        if "eval/return" in evaluated:
            numbers["previous_return"] = evaluated["eval/return"]
    return numbers


@torch.no_grad()
def probe_batch(task: Task, learner: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
    """Turn B transitions into inputs and targets of `probe_loss`, with the targets of `rl.dqn.train.train_step`.

    Returns:
        Observations (B, stack, ...) on the device, and actions beside their targets, (B, 2).
    """
    batch = to_device(task, batch)
    with task.autocast():
        best = learner.target(batch.frames[:, 1:]).float().amax(1)
        targets = batch.rewards + task.config.gamma * best * (1 - batch.terminated.to(best.dtype))
    return batch.frames[:, :-1], torch.stack([batch.actions.to(targets.dtype), targets], 1)


def probe_loss(net: Net, observations: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of `rl.dqn.train.train_step` outside of a step, for methods and measurements; a scalar.

    Args:
        net: the networks.
        observations: (B, stack, ...).
        targets: (B, 2), actions beside their targets.
    """
    return F.smooth_l1_loss(action_values(net.modules["q"], observations, targets[:, 0]), targets[:, 1])


def action_values(q: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
    """Return the values Q(s, a) of actions (B,) for observations (B, stack, ...), (B,)."""
    values: Tensor = q(observations).float()
    return values.gather(1, actions.long()[:, None])[:, 0]


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass some transitions of the replay through the network, for a trigger that measures activations."""
    generator = seeding.generator(task.config.seed, "trigger", learner.step)
    learner.q(to_device(task, learner.replay.sample(PROBE, generator)).frames[:, :-1])


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """Return what a method is given when it acts; its batches are those of `probe_batch`.

    At a boundary it is given the optimizer only with `boundary.optimizer=forget`, because it must not reset one that is
    kept, and need not reset one that is replaced.
    """
    method_seed = (task.config.seed, "method", learner.phase, learner.updates)
    gets_optimizer = at in ("row", "step") or task.config.boundary.optimizer == "forget"

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(*method_seed, "batches")
        for _ in range(BATCHES):
            yield probe_batch(task, learner, learner.replay.sample(task.config.batch_size, generator))

    return Context(
        phase=learner.phase,
        step=learner.updates,
        generator=seeding.generator(*((task.config.seed, "firing", learner.step) if at == "firing" else method_seed)),
        batches=batches,
        loss=functools.partial(probe_loss, learner.net),
        optimizers=learner.optimizer_parts if gets_optimizer else [],
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *seed_of_new_networks(learner, at)),
    )
