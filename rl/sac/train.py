"""Soft actor-critic on humanoids (the paper's figure 4b): `python -m rl.sac method=base,fire -m`.

Two phases of equal length in one task; a method acts between them. Read from `main` down.
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
from rl.sac.control import Statistics
from rl.sac.learner import Learner
from rl.sac.phase import make_context, make_row, measure, pass_probe, policy
from rl.sac.task import Task
from rl.sac.trained import load
from rl.sac.transitions import batch_at
from rl.sac.update import Batch, Drawn, Temperature
from rl.sac.workers import Stepped


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="sac")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the final return, which `hydra/sweeper=optuna` maximises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config, learner = task.config, Learner.new(task)
    replay_store = RingStore(run.folder / "replay")
    if state is not None:
        with loading():
            learner.load_replay(replay_store, state)
            learner.load_state_dict(task, state)
    seen = learner.separate  # each critic alone
    start(task, learner, pass_probe, seen)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(learner.save, task, run, replay_store)
    with (
        contextlib.closing(learner),
        contextlib.closing(task),
        Loop(learner, run, task.total_steps, title, config.progress) as loop,
    ):
        for index, phase in enumerate(task.phases[:stop]):
            if index < learner.phase:
                continue
            if index > learner.phase or learner.step == 0:
                begin_phase(task, learner, index, run)
            acts = task.method_acts_in(index)
            while learner.step < phase.end:
                loss = interact(task, learner, acts)
                loop.advance(config.num_envs)

                ended = learner.step == phase.end
                if ended or learner.step % task.eval_every == 0:
                    loop.read_clock()
                    learner.row = make_row(task, learner)
                    if acts:
                        last = learner.step == task.total_steps
                        act_after_row(learner, learner.separate, make_context(task, learner, "row"), last)
                    run.log(learner.row)
                    loop.show(**{"phase": index, "return": learner.row["eval/return"]})
                if firing := ask_trigger(learner, seen, loss):
                    act(task, learner, run, firing)
                loop.end_step(write_checkpoint, ended)
    return learner.summary()


PROGRAM = Program(Task.from_config, train, groups=("env",), load=load)


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Let the method act at the boundary before phase `index`, measure what it did, restart what `boundary` says."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.generator = seeding.generator(config.seed, "stream", index)
    learner.phase, learner.phase_step = index, 0
    if index > 0:
        if not task.restarts_at_boundaries:
            learner.prepare(task)  # the phase may have a penalty
        elif acts_at_boundaries(config.trigger):
            act(task, learner, run)
        else:
            restart(task, learner)
        if task.empties_replay:
            learner.replay.forget()
        if task.restarts_at_boundaries and config.boundary.statistics == "new":
            learner.statistics = Statistics(task.observations)
        if task.tasks is not None:  # new episodes begin, those of the next task
            learner.workers.choose(learner.phase)
            learner.workers.begin()
            learner.task_returns.begin_task()
    learner.clear_sums()


def act(task: Task, learner: Learner, run: Run | None, firing: Firing | None = None) -> None:
    """Let the method act at the midpoint, or where the trigger fired, and restart what `boundary` says."""
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
    """Restart temperature, target and optimizers as `boundary` says; `context`: with which the method has acted."""
    how = task.config.boundary
    if how.temperature == "new":
        learner.temperature.load_state_dict(Temperature(task.config.temperature).state_dict())
    update_targets(learner.method, learner.net, context, how.target)
    if how.optimizer == "new":
        learner.renew_optimizers(task)
    learner.prepare(task)


def interact(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """A decision in every environment, and while they make it the updates that are due; the last one's critic loss."""
    config, loss = task.config, None
    actions = choose_actions(task, learner, acts)
    learner.workers.send(actions)
    if learner.decisions(task) >= config.random_steps:
        loss = learn(task, learner, acts)
    stepped = learner.workers.receive()
    learner.step += config.num_envs
    learner.phase_step += config.num_envs
    remember(task, learner, actions, stepped)
    return loss


@torch.inference_mode()
def choose_actions(task: Task, learner: Learner, acts: bool) -> np.ndarray:
    """An action in [-1, 1] for each environment, (environments, actions): random at first, then from the policy."""
    observations = learner.workers.observations
    if task.config.normalize_observations:
        learner.statistics.update(observations)
    shape = (len(observations), task.actions)
    if learner.decisions(task) < task.config.random_steps:
        return (torch.rand(shape, generator=learner.generator) * 2 - 1).numpy()
    noise = torch.randn(shape, generator=learner.generator)
    return policy(task, learner, observations, noise)


def learn(task: Task, learner: Learner, acts: bool) -> Tensor:
    """The updates that belong to a decision in every environment; the last one's critic loss."""
    count, size = task.config.updates, task.config.batch_size
    transitions = learner.replay.sample(count, size, learner.generator)
    noise = torch.randn(count, 2, size, task.actions, generator=learner.generator).to(task.device, non_blocking=True)
    statistics = learner.statistics.tensors(task.device)
    for i in range(count):
        loss = train_step(task, learner, Drawn(batch_at(transitions, i), noise[i], statistics), acts)
    return loss


def train_step(task: Task, learner: Learner, batch: Drawn, acts: bool) -> Tensor:
    """An optimizer step of every network (`rl.sac.update.Update`, which adds the method's penalty where it acts);
    `acts`: with the method's hook after the step. Returns the critics' loss."""
    numbers = learner.update(*batch)
    learner.sums += numbers
    learner.counted += 1
    learner.updates += 1
    if acts and learner.method.overrides("after_step"):  # what it is told takes time
        with learner.method_meter:
            learner.method.after_step(learner.separate, make_context(task, learner, "step", numbers[0]))
    return numbers[0]


def remember(task: Task, learner: Learner, actions: np.ndarray, stepped: list[Stepped]) -> None:
    """Append the step of every environment to the replay."""
    columns = ([getattr(s, name) for s in stepped] for name in ("before", "reward", "terminated", "following"))
    before, rewards, terminated, following = (torch.from_numpy(np.array(c, np.float32)) for c in columns)
    learner.replay.add(Batch(before, torch.from_numpy(actions), rewards, terminated, following))
    returns = [s.ended[0] for s in stepped if s.ended is not None]
    learner.returns += returns
    if task.tasks is not None:
        learner.task_returns.add(learner.phase_step, returns)


if __name__ == "__main__":
    sys.exit("start it by its package: python -m rl.sac")
