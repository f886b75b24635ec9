"""What the loop of `rl.sac` does between its updates: actions, rows, evaluation, what methods see."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.methods import Context, Net
from harness.training import seeding
from harness.training.boundary import At, moment_of
from harness.training.measure import weight_numbers
from harness.training.plasticity import plasticity
from rl.common.learner import start_row
from rl.sac.learner import Learner, share_state
from rl.sac.task import Task
from rl.sac.transitions import batch_at
from rl.sac.update import NAMES, Batch, actor_loss, critic_loss, normalised, squash
from rl.sac.workers import play_episodes

LOOKED_AT = 8192  # transitions that a method gets, in batches
PROBE = 512  # transitions on which plasticity is measured


@torch.inference_mode()
def policy(task: Task, learner: Learner, observations: np.ndarray, noise: Tensor | None = None) -> np.ndarray:
    """The policy's actions with this noise, or its mean actions, (k, actions)."""
    x = normalised(torch.from_numpy(observations).to(task.device), learner.statistics.tensors(task.device))
    centre, log_std = learner.actor(x)
    action = torch.tanh(centre) if noise is None else squash(centre, log_std, noise.to(task.device))[0]
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
        new_networks=functools.partial(task.new_networks, *moment_of(learner, at)),
    )


def pass_probe(task: Task, learner: Learner, seen: Net) -> None:
    """Pass some transitions of the replay through the networks, for a trigger that looks at activations."""
    generator = seeding.generator(task.config.seed, "trigger", learner.turns)
    batch = batch_at(learner.replay.sample(1, PROBE, generator), 0)
    observation = normalised(batch.observation, learner.statistics.tensors(task.device))
    for name, module in seen.modules.items():
        module(observation) if name == "actor" else module(observation, batch.action)


def probe_batch(task: Task, learner: Learner, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`targets_for` transitions of the replay."""
    return targets_for(task, learner, batch_at(learner.replay.sample(1, size, generator), 0), generator)


def probe_loss(task: Task, net: Net, inputs: Tensor, targets: Tensor) -> Tensor:
    """The critics' loss; the actor runs too, so that its units can be measured."""
    observation, action = torch.split(inputs, [task.observations, task.actions], 1)
    net.modules["actor"](observation)
    critics = [module for name, module in net.modules.items() if name != "actor"]
    values = [critic(observation, action) for critic in critics]  # (n, batch), or (batch,) of each critic
    q = values[0] if values[0].ndim == 2 else torch.stack(values)
    return critic_loss(q, targets)


def measure(task: Task, learner: Learner, task_ended: bool) -> dict[str, float]:
    """How plastic the networks are, on transitions of the replay.

    Where a task of a stream has ended (`task_ended`), `previous_return` is the return of the mean actions in it: how
    much of what was learned is there before and after the method acts.
    """
    inputs, targets = probe_batch(task, learner, PROBE, seeding.generator(task.config.seed, "probe", learner.phase))
    net, level = learner.separate, task.config.metrics
    features = plasticity(net, lambda: probe_loss(task, net, inputs, targets), level)
    numbers = features | weight_numbers(net, level)  # of each critic alone
    if task_ended and task.tasks is not None and level != "off":
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
    generator = seeding.generator(task.config.seed, "diagnose", learner.turns)
    batch = batch_at(learner.replay.sample(1, PROBE, generator), 0)
    inputs, targets = targets_for(task, learner, batch, generator)
    net = learner.separate
    loss = functools.partial(probe_loss, task, net, inputs, targets)
    numbers = plasticity(net, loss, "cheap", ranks=True) | weight_numbers(net, "cheap")

    observation, action = torch.split(inputs, [task.observations, task.actions], 1)
    mean, log_std = learner.actor(observation)
    noise = torch.randn(PROBE, task.actions, generator=generator).to(task.device)
    chosen, log_p = squash(mean, log_std, noise)
    critic = learner.agent.critic
    of_actor = actor_loss(critic(observation, chosen), log_p, learner.temperature().detach())
    of_critics = critic_loss(critic(observation, action), targets)
    losses = {"gradient_norm": (critic, of_critics), "gradient_norm_actor": (learner.actor, of_actor)}
    for name, (module, value) in losses.items():
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(value, trained)
        numbers[name] = torch.nn.utils.get_total_norm(gradients).item()
    for name, part in (("td_old", (0.0, 0.1)), ("td_fresh", (0.9, 1.0))):
        drawn = learner.replay.sample_part(PROBE, generator, part)
        inputs, y = targets_for(task, learner, drawn, generator)
        with torch.no_grad():
            observation, action = torch.split(inputs, [task.observations, task.actions], 1)
            numbers[name] = (critic(observation, action) - y).abs().mean().item()
    return numbers


@torch.no_grad()
def targets_for(task: Task, learner: Learner, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Normalised observations with their actions, (B, o + a), and the critics' targets, (B,)."""
    statistics = learner.statistics.tensors(task.device)
    noise = torch.randn(len(batch.reward), task.actions, generator=generator).to(task.device)
    y = learner.agent.target_values(batch, normalised(batch.next_observation, statistics), noise)
    return torch.cat([normalised(batch.observation, statistics), batch.action], 1), y
