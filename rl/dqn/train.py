"""DQN on Atari (the paper's figure 4a): `python -m rl.dqn method=base,fire -m`.

Two phases in one environment; a method acts between them, and may act within the second. Read from `main` down; the
formulae are in `rl.dqn.update`, the environments in `rl.dqn.atari`, the replay in `rl.dqn.frames`.
"""

import contextlib
import functools
import sys
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from torch import Tensor

from fire_core.methods import Context
from fire_core.triggers import Firing
from fire_core.weights.optimizer_state import parts_of
from harness.config.cli import CONF
from harness.config.trigger import acts_at_boundaries
from harness.run.checkpoint import loading
from harness.run.execute import Program, execute
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import act_after_row, act_at_boundary
from harness.training.loop import Loop
from rl.common import checkpoint
from rl.common.boundary import update_targets
from rl.common.learner import ask_trigger
from rl.common.replay_store import RingStore
from rl.dqn.changing import Changing
from rl.dqn.episodes import Step
from rl.dqn.evaluation import epsilon_greedy
from rl.dqn.learner import Learner, best_actions, build_passes, new_optimizer, on_device, targets_of
from rl.dqn.phase import (
    crossed,
    exploration_rate,
    make_context,
    make_row,
    measure,
    save,
    start_trigger,
    summarise,
)
from rl.dqn.task import Task
from rl.dqn.update import huber


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="dqn")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the final return, which `hydra/sweeper=optuna` maximises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config, learner = task.config, Learner.new(task)
    replay_store = RingStore(run.folder / "replay", config.replay.segment)
    if state is not None:
        with loading():
            checkpoint.load_replay(replay_store, learner.replay, state)
            learner.load_state_dict(task, state)
    seen = start_trigger(task, learner)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(save, task, learner, run, replay_store)
    with (
        contextlib.closing(replay_store),
        contextlib.closing(learner),
        Loop(learner, run, task.total_steps, title, config.progress) as loop,
    ):
        for index, phase in enumerate(task.phases[:stop]):
            if index < learner.phase:
                continue
            if index > learner.phase or learner.step == 0:
                begin_phase(task, learner, index, run)
            acts = task.method_acts_in(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                while learner.step < phase.end:
                    loss = interact(task, learner, acts)
                    replay_store.follow(learner.replay)
                    loop.advance(config.num_envs)

                    ended = learner.step >= phase.end
                    evaluates = ended or crossed(learner.step, config.num_envs, config.eval.every)
                    if evaluates or crossed(learner.step, config.num_envs, config.log_every):
                        loop.read_clock()
                        learner.row = make_row(task, learner, evaluates)
                        if acts:
                            last = learner.step >= task.total_steps
                            act_after_row(learner, learner.net, make_context(task, learner), last)
                        run.log(learner.row)
                        loop.show(**{"phase": index, "return": learner.evaluated.get("eval/return", float("nan"))})
                    if firing := ask_trigger(learner, seen, loss):
                        act(task, learner, run, firing)
                    loop.end_step(write_checkpoint, ended)
    return summarise(learner)


PROGRAM = Program(Task.from_config, train, groups=("env",))


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None = None) -> None:
    """Let the method act at the boundary before phase `index`, measure what it did, and take the phase's optimizer."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.phase, learner.phase_step = index, 0
    if index == 0:
        learner.optimizer = new_optimizer(task, learner, index)
    elif task.restarts_at_boundaries:
        if acts_at_boundaries(config.trigger):
            act(task, learner, run)
            learner.passes = build_passes(task, learner.net)
        else:
            restart(task, learner)
        if task.empties_replay:
            learner.replay.forget()
    if index > 0 and (task.benchmark is not None or task.empties_replay):
        begin_episodes(task, learner)


def begin_episodes(task: Task, learner: Learner) -> None:
    """Let new episodes begin, in a stream those of the next task."""
    if task.benchmark is not None:
        learner.begin_task()
        learner.of_tasks.begin_task()
    learner.replay.start(torch.arange(learner.env.envs), learner.env.begin())


def act(task: Task, learner: Learner, run: Run | None, firing: Firing | None = None) -> None:
    """Let the method act at the midpoint, or where the trigger fired, and do what `boundary.*` says."""
    context = make_context(task, learner)
    context.optimizers = parts_of(learner.optimizer) if task.config.boundary.optimizer == "forget" else []
    if firing is not None:
        context.generator = seeding.generator(task.config.seed, "firing", learner.step)
    act_at_boundary(
        learner,
        context,
        name=task.config.method["name"],
        device=task.device,
        run=run,
        measure=functools.partial(measure, task, learner),
        level=task.config.metrics,
        afterwards=functools.partial(restart, task, learner, context),
        firing=firing,
    )


def restart(task: Task, learner: Learner, context: Context | None = None) -> None:
    """Restart target and optimizer as `boundary` says; `context`: with which the method has acted, if it has."""
    boundary = task.config.boundary
    update_targets(learner.method, learner.net, context, boundary.target)
    if boundary.optimizer == "new":
        learner.optimizer = new_optimizer(task, learner, learner.phase)


def interact(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """A step of every environment, and while they make it the updates that are due; the loss of the last of these."""
    config, env, loss = task.config, learner.env, None
    if learner.step == 0:
        learner.replay.start(torch.arange(env.envs), env.begin())
    actions = choose_actions(task, learner, acts)
    env.send(actions)
    before = learner.step
    since = learner.phase_step if task.empties_replay else before  # the replay began to fill
    learner.step += config.num_envs
    learner.phase_step += config.num_envs
    if since > config.learning_starts:
        due = int(learner.step * config.updates_per_step) - int(before * config.updates_per_step)
        if due:
            loss = learn(task, learner, due, acts)
        if crossed(learner.step, config.num_envs, config.target_every):
            learner.target.load_state_dict(learner.q.state_dict())
    remember(learner, actions, env.recv())
    return loss


def choose_actions(task: Task, learner: Learner, acts: bool) -> Tensor:
    """Epsilon-greedy actions for what the environments show, (envs,)."""
    env, rate = learner.env, exploration_rate(task, learner)
    best = torch.zeros(env.envs, dtype=torch.int64)
    if rate < 1:
        best = best_actions(task, learner, env.observations, acts)
    return epsilon_greedy(best, task.actions, rate, learner.exploring, task.config.exploration == "shared")


def learn(task: Task, learner: Learner, updates: int, acts: bool) -> Tensor:
    """Make this many updates; the loss of the last."""
    size = task.config.batch_size
    batch = on_device(task, learner.replay.sample(updates * size, learner.sampling))
    targets = targets_of(task, learner, batch)
    observations, actions = (torch.split(part, size) for part in (batch.frames[:, :-1], batch.actions))
    for i in range(updates):
        loss = train_step(task, learner, observations[i], actions[i], targets[i](), acts)
    return loss


def train_step(
    task: Task, learner: Learner, observations: Tensor, actions: Tensor, targets: Tensor, acts: bool
) -> Tensor:
    """One optimizer step; `acts`: with the method's penalty and its hook after the step. Returns its loss."""
    optimizer = learner.optimizer
    assert optimizer is not None
    values = learner.passes.values(observations, actions)
    loss = huber(values, targets)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    if acts:
        with learner.method_meter:
            penalty = learner.method.penalty(learner.net)
            if penalty is not None:
                torch.autograd.backward(penalty)
    optimizer.step()
    learner.updates += 1
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, make_context(task, learner, loss.detach()))
    learner.loss_sum += loss.detach()
    learner.value_sum += values.detach().mean()
    learner.updates_since += 1
    return loss.detach()


def remember(learner: Learner, actions: Tensor, step: Step) -> None:
    """Append the step of every environment to the replay."""
    learner.replay.append(step.frames, actions, step.rewards, step.terminated)
    if len(step.ended):
        learner.replay.start(step.ended, step.first)
        learner.returns += step.returns
        if isinstance(learner.env.emulator, Changing):
            learner.of_tasks.add(learner.phase_step, step.returns)


if __name__ == "__main__":
    sys.exit("start it by its package: python -m rl.dqn")
