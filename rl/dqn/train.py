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
from harness.config.groups import CONF
from harness.config.trigger import acts_at_boundaries
from harness.run.checkpoint import loading
from harness.run.execute import Program, execute
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import act_after_row, act_at_boundary
from harness.training.firing import start
from harness.training.loop import Loop
from rl.common.boundary import update_targets
from rl.common.learner import ask_trigger
from rl.common.replay_store import RingStore
from rl.dqn.episodes import Step
from rl.dqn.evaluation import epsilon_greedy
from rl.dqn.frames import Batch
from rl.dqn.learner import Learner, best_actions, on_device, targets_of
from rl.dqn.phase import (
    crossed,
    exploration_rate,
    make_context,
    make_row,
    measure,
    pass_probe,
)
from rl.dqn.task import Task
from rl.dqn.update import chosen, huber


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
            learner.load_replay(replay_store, state)
            learner.load_state_dict(task, state)
    seen = learner.net
    start(task, learner, pass_probe, seen)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(learner.save, task, run, replay_store)
    with (
        contextlib.closing(learner),
        Loop(learner, run, task.total_steps, title, config.progress) as loop,
    ):
        for index, phase in enumerate(task.phases[:stop]):
            if index < learner.phase:
                continue
            if index > learner.phase or not learner.optimizers:
                begin_phase(task, learner, index, run)
            acts = task.method_acts_in(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                while learner.step < phase.end:
                    loss = interact(task, learner, acts)
                    loop.advance(config.num_envs)

                    ended = learner.step >= phase.end
                    evaluates = ended or crossed(learner.step, config.num_envs, config.eval.every)
                    if evaluates or crossed(learner.step, config.num_envs, config.log_every):
                        loop.read_clock()
                        learner.row = make_row(task, learner, evaluates)
                        if acts:
                            last = learner.step >= task.total_steps
                            act_after_row(learner, learner.net, make_context(task, learner, "row"), last)
                        run.log(learner.row)
                        loop.show(**{"phase": index, "return": learner.row.get("train/return", float("nan"))})
                    if firing := ask_trigger(learner, seen, loss):
                        act(task, learner, run, firing)
                    loop.end_step(write_checkpoint, ended)
    return learner.summary()


PROGRAM = Program(Task.from_config, train, groups=("env",))


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Let the method act at the boundary before phase `index`, measure what it did, and take the phase's optimizer."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
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
    """Restart target and optimizer as `boundary` says; `context`: with which the method has acted, if it has."""
    boundary = task.config.boundary
    update_targets(learner.method, learner.net, context, boundary.target)
    if boundary.optimizer == "new":
        learner.renew_optimizers(task)


def interact(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """A decision in every environment, and while they make it the updates that are due; the last one's loss."""
    config, env, loss = task.config, learner.env, None
    if learner.step == 0:
        learner.replay.start(torch.arange(env.envs), env.begin())
    actions = choose_actions(task, learner, acts)
    env.send(actions)
    learns = learner.decisions(task) > config.learning_starts
    learner.step += config.num_envs
    learner.phase_step += config.num_envs
    if learns:
        loss = learn(task, learner, acts)
        if crossed(learner.step, config.num_envs, config.target_every):
            learner.target.load_state_dict(learner.q.state_dict())
    remember(task, learner, actions, env.recv())
    return loss


def choose_actions(task: Task, learner: Learner, acts: bool) -> Tensor:
    """Epsilon-greedy actions for what the environments show, (envs,)."""
    env, rate = learner.env, exploration_rate(task, learner)
    best = torch.zeros(env.envs, dtype=torch.int64)
    if rate < 1:
        best = best_actions(task, learner, env.observations, acts)
    return epsilon_greedy(best, task.emulator.actions, rate, learner.exploring, task.config.exploration == "shared")


def learn(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """Make the updates that are due after the last decisions; the loss of the last update, None if none is due."""
    config, loss = task.config, None
    before = learner.step - config.num_envs
    due = int(learner.step * config.updates_per_step) - int(before * config.updates_per_step)
    if due == 0:
        return None
    size = config.batch_size
    drawn = on_device(task, learner.replay.sample(due * size, learner.sampling))
    for batch in zip(*(part.split(size) for part in drawn), strict=True):
        loss = train_step(task, learner, Batch(*batch), acts)
    return loss


def train_step(task: Task, learner: Learner, batch: Batch, acts: bool) -> Tensor:
    """One optimizer step on transitions; `acts`: with the method's penalty and its hooks around
    the step. Returns its loss."""
    optimizer, targets = learner.optimizer, targets_of(task, learner, batch)
    with task.autocast():
        values = chosen(learner.q, batch.frames[:, :-1], batch.actions)
    loss = huber(values, targets)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    learner.updates += 1
    if acts:
        with learner.method_meter:
            penalty = learner.method.penalty(learner.net)
            if penalty is not None:
                torch.autograd.backward(penalty)
            context = make_context(task, learner, "step", loss.detach())
            learner.method.before_step(learner.net, context)
    optimizer.step()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, context)
    learner.sums += torch.stack([loss.detach(), values.detach().mean()])
    learner.counted += 1
    return loss.detach()


def remember(task: Task, learner: Learner, actions: Tensor, stepped: Step) -> None:
    """Append the step of every environment to the replay."""
    learner.replay.append(stepped.frames, actions, stepped.rewards, stepped.terminated)
    if len(stepped.ended):
        learner.replay.start(stepped.ended, stepped.first)
        learner.returns += stepped.returns
        if task.benchmark is not None:
            learner.of_tasks.add(learner.phase_step, stepped.returns)


if __name__ == "__main__":
    sys.exit("start it by its package: python -m rl.dqn")
