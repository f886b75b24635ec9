"""DQN on streams of tasks and on Atari (the paper's figure 4a): `python -m rl.dqn method=base,fire -m`.

A run has a stream of tasks, or two phases in one environment; a method acts between them, and may act within them. Read
the file from `main` down: the algorithm of Mnih et al. (Nature 2015) is in `choose_actions` (exploration), `learn` and
`train_step` (target and loss). The environments are in `rl.dqn.atari`, the replay is in `rl.dqn.frames`.
"""

import contextlib
import functools
import sys
from typing import Any

import hydra
import torch
import torch.nn.functional as F
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
from rl.dqn.episodes import Step
from rl.dqn.frames import Batch
from rl.dqn.learner import Learner, greedy_actions, to_device
from rl.dqn.phase import make_context, make_row, measure, pass_probe
from rl.dqn.task import Task
from rl.dqn.trained import load


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="dqn")
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
    replay_store = RingStore(run.folder / "replay", config.replay.segment)
    if state is not None:
        with loading():
            learner.load_replay(replay_store, state)
            learner.load_state_dict(task, state)
    start(task, learner, pass_probe)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(learner.save, task, run, replay_store)
    with (
        contextlib.closing(learner),
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

                    ended = learner.step >= end
                    evaluates = ended or crossed(learner.step, config.num_envs, config.eval.every)
                    if evaluates or crossed(learner.step, config.num_envs, config.log_every):
                        loop.read_clock()
                        with loop.evaluation():
                            learner.row = make_row(task, learner, evaluates)
                            learner.row["epsilon"] = exploration_rate(task, learner)
                            if acts:
                                last = learner.step >= task.total_steps
                                act_after_row(learner, make_context(task, learner, "row"), last)
                        run.log(learner.row)
                        loop.show(**{"phase": index, "return": learner.row.get("train/return", float("nan"))})
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
    if index == 0 or task.is_stream or task.empties_replay:
        begin_episodes(task, learner)
    learner.clear_sums()


def begin_episodes(task: Task, learner: Learner) -> None:
    """Begin new episodes, in a stream those of the next task."""
    if task.is_stream:
        learner.begin_task()
        learner.task_returns.begin_task()
    learner.replay.start(torch.arange(learner.env.envs), learner.env.begin())


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
    """Restart target and optimizer as `boundary` says.

    Args:
        task: the task of the run.
        learner: the learner.
        context: the context with which the method has just acted; None if it has not acted.
    """
    boundary = task.config.boundary
    update_targets(learner.method, learner.net, context, boundary.target)
    if boundary.optimizer == "new":
        learner.renew_optimizers(task)


def interact(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """Make one decision in every environment, and the updates that are due while the environments step.

    The updates learn from earlier transitions; none is due until more than `learning_starts` decisions have been made.

    Args:
        task: the task of the run.
        learner: the learner; its `step` and `phase_step` grow by the number of environments.
        acts: whether the method acts within this phase, see `train_step`.

    Returns:
        The loss of the last update, a scalar on the device; None if there was no update.
    """
    config, loss = task.config, None
    actions = choose_actions(task, learner)
    learner.env.send(actions)
    if learner.decisions(task) > config.learning_starts:
        loss = learn(task, learner, acts)
    stepped = learner.env.recv()
    learner.step += config.num_envs
    learner.phase_step += config.num_envs
    remember(task, learner, actions, stepped)
    return loss


def crossed(step: int, by: int, every: int) -> bool:
    """Return whether a multiple of `every` was reached within the last `by` steps."""
    return step // every > (step - by) // every


def choose_actions(task: Task, learner: Learner) -> Tensor:
    """Return epsilon-greedy actions for the present observations, (envs,) on the CPU."""
    envs, epsilon, generator = learner.env.envs, exploration_rate(task, learner), learner.exploring
    actions = torch.zeros(envs, dtype=torch.int64)
    if epsilon < 1:
        actions = greedy_actions(task, learner, learner.env.observations)
    # With `shared`, as in the FIRE authors' code, either all environments take random actions or none does.
    draws = 1 if task.config.exploration == "shared" else envs
    explores = torch.rand(draws, generator=generator) < epsilon
    random_actions = torch.randint(task.emulator.actions, (envs,), generator=generator)
    return torch.where(explores, random_actions, actions)


def exploration_rate(task: Task, learner: Learner) -> float:
    """Return the chance of a random action: `epsilon.start` until learning starts, then linearly to `epsilon.end`."""
    config, epsilon = task.config, task.config.epsilon
    step = learner.phase_step if task.knows_boundaries else learner.step  # an agent explores each known task anew
    duration = epsilon.fraction * (config.total_steps if task.benchmark is None else task.benchmark.steps)
    slope = (epsilon.end - epsilon.start) / duration
    return max(epsilon.end, min(epsilon.start, epsilon.start + slope * (step - config.learning_starts)))


def learn(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """Make the updates due for the decisions just taken, which `learner.step` does not count yet.

    If a copy of the network to the target is due with these decisions, it comes after the updates.

    Returns:
        The loss of the last update, a scalar on the device; None if no update is due.
    """
    config, loss = task.config, None
    after = learner.step + config.num_envs
    due = int(after * config.updates_per_step) - int(learner.step * config.updates_per_step)
    if due > 0:
        size = config.batch_size
        transitions = to_device(task, learner.replay.sample(due * size, learner.sampling))
        for batch in zip(*(column.split(size) for column in transitions), strict=True):
            loss = train_step(task, learner, Batch(*batch), acts)
    if crossed(after, config.num_envs, config.target_every):
        learner.target.load_state_dict(learner.q.state_dict())
    return loss


def train_step(task: Task, learner: Learner, batch: Batch, acts: bool) -> Tensor:
    """Make one optimizer step on B transitions.

    An episode that a time limit has cut did not terminate, so that its last state is bootstrapped from.

    Args:
        task: the task of the run.
        learner: the learner.
        batch: the transitions, on the device.
        acts: whether to add the method's penalty and call its hooks around the step.

    Returns:
        The loss, a scalar on the device.
    """
    config, optimizer = task.config, learner.optimizer
    observations, next_observations = batch.frames[:, :-1], batch.frames[:, 1:]  # (B, stack, ...) each
    with torch.no_grad(), task.autocast():
        best = learner.target(next_observations).float().amax(1)  # max_a Q_target(s', a), (B,)
        targets = batch.rewards + config.gamma * best * (1 - batch.terminated.to(best.dtype))  # (B,)
    with task.autocast():
        values = learner.q(observations).float()  # Q(s, .), (B, actions)
    values = values.gather(1, batch.actions[:, None])[:, 0]  # Q(s, a) of the actions that were taken, (B,)
    loss = F.smooth_l1_loss(values, targets)  # Huber's, with threshold 1

    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    learner.updates += 1
    if acts:
        with learner.method_meter:
            if (penalty := learner.method.penalty(learner.net)) is not None:
                penalty.backward()
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
        if task.is_stream:
            learner.task_returns.add(learner.phase_step, stepped.returns)


if __name__ == "__main__":
    sys.exit("start it by its package: python -m rl.dqn")
