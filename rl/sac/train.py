"""Soft actor-critic on streams and on humanoids (the paper's figure 4b): `python -m rl.sac method=base,fire -m`.

A run has a stream of tasks, or two phases in one environment; a method acts between them, and may act within them. Read
the file from `main` down: the algorithm of Haarnoja et al. (arXiv 1812.05905) is in `choose_actions`, `learn` and
`train_step` (target, losses and steps). The networks are in `rl.sac.networks`, the environments in `rl.sac.control`,
the replay in `rl.sac.transitions`.
"""

import contextlib
import functools
import sys
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from fire_core.methods import Context
from fire_core.triggers import Firing
from harness.config.groups import CONF
from harness.config.trigger import acts_at_boundaries
from harness.program.execute import Program, execute
from harness.run.checkpoint import loading
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import act_after_row, act_at_boundary
from harness.training.firing import start
from harness.training.loop import Loop
from rl.common.boundary import update_targets
from rl.common.learner import ask_trigger
from rl.common.replay_store import RingStore, check_segments
from rl.sac.control import Statistics
from rl.sac.learner import Learner, normalise
from rl.sac.networks import Temperature
from rl.sac.phase import make_context, make_row, measure, pass_probe, policy
from rl.sac.task import Task
from rl.sac.trained import load
from rl.sac.transitions import Batch, batch_at
from rl.sac.workers import Stepped


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="sac")
def main(config: DictConfig) -> float:
    """Train one configuration and return its final return, which `hydra/sweeper=optuna` maximises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from a checkpoint's state to the end of phase `stop - 1`; no method acts at the boundary after it.

    Args:
        task: the task of the run.
        run: the run's folder.
        state: of a checkpoint of this run, or of the shared first phase; None starts the run.
        stop: number of the phase before which to stop; None trains to the end.

    Returns:
        The run's summary.

    Raises:
        Diverged: the loss is not finite.
        TrainingError: a checkpoint that ends a phase could not be written.
        SystemExit: a signal asked the process to stop, and the state is saved; see `Loop`.
    """
    config, learner = task.config, Learner.new(task)
    replay_store = RingStore(run.folder / "replay")
    if state is not None:
        with loading():
            learner.load_replay(replay_store, state)
            learner.load_state_dict(task, state)
    start(task, learner, pass_probe)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(learner.save, task, run, replay_store)
    with (
        contextlib.closing(learner),
        contextlib.closing(task),
        Loop(learner, run, task.total_steps, title, config.progress) as loop,
    ):
        for index in range(learner.phase, stop or len(task.phases)):
            if index > learner.phase or not learner.optimizers:
                begin_phase(task, learner, index, run)
            acts, end = task.method_acts_in(index), task.phase_end(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                if acts and config.compile != "off":
                    torch.compiler.reset()  # what was compiled before the method put its hooks on does not run them
                while learner.step < end:
                    loss = interact(task, learner, acts)
                    loop.advance(config.num_envs)

                    ended = learner.step == end
                    if ended or learner.step % task.eval_every == 0:
                        loop.read_clock()
                        with loop.evaluation():
                            learner.row = make_row(task, learner)
                            if acts:
                                last = learner.step == task.total_steps
                                act_after_row(learner, make_context(task, learner, "row"), last)
                        run.log(learner.row)
                        loop.show(**{"phase": index, "return": learner.row["eval/return"]})
                    if firing := ask_trigger(task, learner, loss):
                        with loop.evaluation():
                            act(task, learner, run, firing)
                    loop.end_step(write_checkpoint, ended)
    return learner.summary()


PROGRAM = Program(Task.from_config, train, groups=("env",), load=load, check_files=check_segments)


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Let the method act at the boundary before phase `index`, measure its effect, and restart what `boundary` says."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.generator = seeding.generator(config.seed, "stream", index)
    learner.phase, learner.phase_step = index, 0
    if index == 0:
        learner.renew_optimizers(task)
    elif task.restarts_at_boundaries:
        if acts_at_boundaries(config.trigger):
            act(task, learner, run)
        else:
            restart(task, learner)
        if task.empties_replay:
            learner.replay.forget()
        if config.boundary.statistics == "new":
            learner.statistics = Statistics(task.observations)
    if index > 0 and task.is_stream:
        begin_episodes(learner)
    learner.clear_sums()


def begin_episodes(learner: Learner) -> None:
    """Begin new episodes in every environment, those of the next task of a stream."""
    learner.workers.choose(learner.phase)
    learner.workers.begin()
    learner.task_returns.begin_task()


def act(task: Task, learner: Learner, run: Run | None, firing: Firing | None = None) -> None:
    """Let the method act at a boundary, or because the trigger fired, and restart what `boundary` says."""
    context = make_context(task, learner, "firing" if firing else "boundary")
    act_at_boundary(
        task,
        learner,
        context,
        run,
        measure=functools.partial(measure, task, learner, firing is None),
        level=task.config.metrics,
        afterwards=functools.partial(restart, task, learner, context),
        firing=firing,
    )


def restart(task: Task, learner: Learner, context: Context | None = None) -> None:
    """Restart temperature, target critics and optimizers as `boundary` says.

    Args:
        task: the task of the run.
        learner: the learner.
        context: the context with which the method has just acted; None if it has not acted.
    """
    boundary = task.config.boundary
    if boundary.temperature == "new":
        learner.temperature.load_state_dict(Temperature(task.config.temperature).state_dict())
    update_targets(learner.method, learner.net, context, boundary.target)
    if boundary.optimizer == "new":
        learner.renew_optimizers(task)


def interact(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """Make one decision in every environment, and the updates that are due while the environments step.

    The updates learn from earlier transitions; none is due until `random_steps` decisions have been made.

    Args:
        task: the task of the run.
        learner: the learner; its `step` and `phase_step` grow by the number of environments.
        acts: whether the method acts within this phase, see `train_step`.

    Returns:
        The critics' loss of the last update, a scalar on the device; None if there was no update.
    """
    config, loss = task.config, None
    actions = choose_actions(task, learner)
    learner.workers.send(actions)
    if learner.decisions(task) >= config.random_steps:
        loss = learn(task, learner, acts)
    stepped = learner.workers.receive()
    learner.step += config.num_envs
    learner.phase_step += config.num_envs
    remember(task, learner, actions, stepped)
    return loss


@torch.inference_mode()
def choose_actions(task: Task, learner: Learner) -> np.ndarray:
    """Return actions in [-1, 1], (envs, a): random while the replay begins to fill, then drawn by the policy.

    Statistics of the observations are updated, if observations are normalised by them.
    """
    observations = learner.workers.observations
    if task.config.normalize_observations:
        learner.statistics.update(observations)
    shape = (len(observations), task.actions)
    if learner.decisions(task) < task.config.random_steps:
        return (torch.rand(shape, generator=learner.generator) * 2 - 1).numpy()
    return policy(task, learner, observations, torch.randn(shape, generator=learner.generator))


def learn(task: Task, learner: Learner, acts: bool) -> Tensor:
    """Make `updates` updates for the decisions just taken, which `learner.step` does not count yet.

    Returns:
        The critics' loss of the last update, a scalar on the device.
    """
    count, size = task.config.updates, task.config.batch_size
    transitions = normalise(task, learner, learner.replay.sample(count, size, learner.generator))  # (count, B, ...)
    for i in range(count):
        loss = train_step(task, learner, batch_at(transitions, i), acts)
    return loss


def train_step(task: Task, learner: Learner, batch: Batch, acts: bool) -> Tensor:
    """Make one optimizer step of actor, critics and temperature on B transitions, then move the target critics.

    All gradients are taken before the first of these steps, so that a method sees one step of the whole agent.

    Args:
        task: the task of the run.
        learner: the learner.
        batch: the transitions, with normalised observations.
        acts: whether to add the method's penalty and call its hooks around the step.

    Returns:
        The critics' loss, a scalar on the device.
    """
    actor, critics, optimizers = learner.actor, learner.critics, learner.optimizers
    # Drawn on the CPU, so that all devices draw alike; from pinned memory the copy to a GPU is not waited for.
    shape, pinned = (2, len(batch.reward), task.actions), task.device.type == "cuda"
    noise = torch.randn(shape, generator=learner.generator, pin_memory=pinned).to(task.device, non_blocking=True)
    temperature = learner.temperature()
    alpha = temperature.detach()

    # What the critics learn: r + gamma (min Q_target(s', a') - alpha log p(a'|s')), where the episode has not ended.
    with torch.no_grad():
        next_action, next_log_p = actor.sample(batch.next_observation, noise[0])  # (B, a), (B,)
        next_values = [target(batch.next_observation, next_action) for target in learner.target_critics]  # (B,) each
        next_value = torch.stack(next_values).amin(0) - alpha * next_log_p  # (B,)
        targets = batch.reward + task.gamma * (1 - batch.terminated) * next_value  # (B,)

    action, log_p = actor.sample(batch.observation, noise[1])  # (B, a), (B,)
    action_values = [critic(batch.observation, action) for critic in critics]  # (B,) each
    actor_loss = (alpha * log_p - torch.stack(action_values).amin(0)).mean()

    values = torch.stack([critic(batch.observation, batch.action) for critic in critics])  # (critics, B)
    critic_loss: Tensor = (values - targets).square().mean(1).sum()

    entropy = -log_p.detach().mean()
    temperature_loss = temperature * (entropy - task.config.target_entropy * task.actions)

    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    actor_loss.backward(inputs=[p for p in actor.parameters() if p.requires_grad])  # the critics only pass it on
    critic_loss.backward()
    temperature_loss.backward()
    learner.updates += 1
    if acts:
        with learner.method_meter:
            if (penalty := learner.method.penalty(learner.net)) is not None:
                penalty.backward()
            context = make_context(task, learner, "step", critic_loss.detach())
            learner.method.before_step(learner.net, context)
    for optimizer in optimizers.values():
        optimizer.step()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, context)

    with torch.no_grad():
        for slow, fast in zip(learner.target_critics.parameters(), critics.parameters(), strict=True):
            slow.lerp_(fast, task.config.tau)  # slow <- (1 - tau) slow + tau fast
        for kept, new in zip(learner.target_critics.buffers(), critics.buffers(), strict=True):
            kept.copy_(new)  # such as the statistics of batch norm, which are averages already
    learner.sums += torch.stack([critic_loss.detach(), actor_loss.detach(), entropy, values.detach().mean()])
    learner.counted += 1
    return critic_loss.detach()


def remember(task: Task, learner: Learner, actions: np.ndarray, stepped: list[Stepped]) -> None:
    """Append the step of every environment to the replay, and the returns of episodes that ended to the learner."""

    def column(name: str) -> Tensor:
        return torch.from_numpy(np.array([getattr(step, name) for step in stepped], np.float32))

    learner.replay.add(
        Batch(
            observation=column("observation"),
            action=torch.from_numpy(actions),
            reward=column("reward"),
            terminated=column("terminated"),
            next_observation=column("next_observation"),
        )
    )
    returns = [step.ended_episode[0] for step in stepped if step.ended_episode is not None]
    learner.returns += returns
    if task.is_stream:
        learner.task_returns.add(learner.phase_step, returns)


if __name__ == "__main__":
    sys.exit("start it by its package: python -m rl.sac")
