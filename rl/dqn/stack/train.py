"""Runs that differ in their seed alone, trained together (`stack=10`). Read from `train` down; beside `rl.dqn.train`.

Each run has its own `Learner`, whose weights, optimizer state and replay are views of common tensors. So a step is made
for all at once, while whatever happens between steps (boundaries, rows, checkpoints, hooks of methods) is done for each
run by the code that also serves a run alone, on its own networks and generators.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.checkpoint import loading
from fire_core.harness.run.folder import Run
from fire_core.harness.stacked.method import SeparateMethods, choose_methods, choose_optimizer
from fire_core.harness.stacked.network import StackedNetworks
from fire_core.harness.stacked.runs import StackedRuns
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row
from fire_core.harness.training.loop import Loop
from fire_core.methods import Context
from rl.common import checkpoint
from rl.common.replay_store import RingStore
from rl.dqn.learner import Learner
from rl.dqn.phase import crossed, exploration_rate, make_context, make_row, save, summarise
from rl.dqn.quick import QuickUpdates
from rl.dqn.stacked_replay import StackedReplay
from rl.dqn.task import Task

State = dict[str, Any]
BeginPhase = Callable[[Task, Learner, int, Run], None]
FOLLOW = 32  # steps between two looks for full segments of the replays


def train(
    tasks: Sequence[Task],
    runs: Sequence[Run],
    states: Sequence[State | None],
    stop: int | None = None,
    *,
    begin_phase: BeginPhase,
) -> list[dict[str, Any] | TrainingError]:
    """Train each run from its state (None: from the start) up to phase `stop` (None: to the end).

    Runs that stand at one step train together; those that stand elsewhere, in a stack of their own.

    Args:
        tasks: of the runs.
        runs: their folders, open.
        states: where each stands; its replay is on the disk.
        stop: the phase before which to stop.
        begin_phase: the trainer's (`rl.dqn.train`), which lets a method act at a boundary.

    Returns:
        For each run its summary, or why it cannot go on.
    """
    results: dict[int, dict[str, Any] | TrainingError] = {}
    end = tasks[0].phases[len(tasks[0].phases[:stop]) - 1].end
    groups: dict[int, list[int]] = {}
    for i, state in enumerate(states):
        groups.setdefault(0 if state is None else int(state["step"]), []).append(i)
    for _, together in sorted(groups.items()):  # stacks of their own, as replays are too large to be moved about
        with contextlib.ExitStack() as opened:
            stack = Stack([tasks[i] for i in together], [runs[i] for i in together], begin_phase, opened)
            stack.load([states[i] for i in together])
            stack.train_until(end, stop)
            for place, i in enumerate(together):
                results[i] = stack.failed.get(place) or summarise(stack.learners[place])
    return [results[i] for i in range(len(tasks))]


class Stack(StackedRuns):
    """Runs at one step, and what they have in common.

    Args:
        tasks: of the runs.
        runs: their folders, open.
        act: the trainer's `begin_phase`.
        opened: closes environments, threads and files.
    """

    def __init__(
        self, tasks: Sequence[Task], runs: Sequence[Run], act: BeginPhase, opened: contextlib.ExitStack
    ) -> None:
        super().__init__(tasks, runs)
        self.tasks, self.act, self.config = tasks, act, tasks[0].config
        self.stores = [RingStore(run.folder / "replay", self.config.replay.segment) for run in runs]
        self.learners = [Learner.new(task) for task in tasks]
        for store, learner in zip(self.stores, self.learners, strict=True):
            opened.callback(store.close)
            opened.callback(learner.close)
        self.online = StackedNetworks([learner.q for learner in self.learners])
        self.target = StackedNetworks([learner.target for learner in self.learners])
        self.replay = StackedReplay([learner.replay for learner in self.learners])
        self.seconds, self.phase, self.phase_step, self.step, self.updates = 0.0, 0, 0, 0, 0
        self.quick: QuickUpdates | None = None
        self.methods: SeparateMethods | None = None  # in a phase in which they act
        self.clear_sums()

    def load(self, states: Sequence[State | None]) -> None:
        """Go on from these, all of one step."""
        for i, state in enumerate(states):
            learner = self.learners[i]
            if state is None:
                continue
            with loading():
                replay = learner.replay
                checkpoint.load_replay(self.stores[i], replay, state)
                learner.load_state_dict(self.tasks[i], state)
            self.generators[i], self.before[i] = state["rng"], learner.seconds
            self.phase, self.phase_step, self.step = learner.phase, learner.phase_step, learner.step
            self.updates, self.updates_since = learner.updates, learner.updates_since
            self.loss_sum[i], self.value_sum[i] = learner.loss_sum, learner.value_sum
            self.observations[i] = learner.env.observations[0].numpy()

    def train_until(self, end: int, stop: int | None) -> None:
        """Train up to step `end`, the last of phase `stop` - 1."""
        task, config = self.tasks[0], self.config
        seeds = f"{config.seed} to {self.tasks[-1].config.seed}"
        title = f"{config.method['name']}, {len(self.tasks)} seeds ({seeds})"
        with Loop(self, self.runs[0], task.total_steps, title, config.progress) as loop:
            for index, phase in enumerate(task.phases[:stop]):
                if index < self.phase:
                    continue
                if index > self.phase or self.step == 0:
                    self.begin_phase(index)
                self.begin_steps(task.method_acts_in(index))
                with contextlib.nullcontext() if self.methods is None else self.methods.watch():
                    while self.step < phase.end and self.going:
                        self.interact()
                        loop.advance()
                        ended = self.step >= phase.end
                        evaluates = ended or crossed(self.step, 1, config.eval.every)
                        if evaluates or crossed(self.step, 1, config.log_every):
                            loop.read_clock()
                            self.make_rows(evaluates)
                        if not self.going:
                            return
                        loop.run = self.runs[self.going[0]]
                        loop.end_step(self.save, ended=self.step == end)

    def begin_phase(self, index: int) -> None:
        """The boundary before phase `index`, for each run as if it were alone."""
        self.write_back()
        for i in self.going:
            self.bring_up_to_date(i)
            learner = self.learners[i]
            self.attempt(i, functools.partial(self.act, self.tasks[i], learner, index, self.runs[i]))
            self.generators[i] = seeding.rng_state()
            if self.step == 0:
                learner.replay.start(torch.arange(1), learner.env.begin())
            self.observations[i] = learner.env.observations[0].numpy()
        self.phase, self.phase_step = index, 0

    def begin_steps(self, acts: bool) -> None:
        """How the steps of a phase are made. `acts`: whether the methods act in it."""
        parts = (self.learners, lambda: self.going, self.moment, self.as_seed)
        self.methods = choose_methods(*parts, {"q": self.online}) if acts else None
        self.renew_updates()

    def renew_updates(self) -> None:
        """The updates of a phase, with the optimizers as they are now."""
        optimizer = choose_optimizer(self.learners, self.online, self.methods, self.as_seed)
        self.quick = QuickUpdates(self.online, self.target, optimizer, self.config.gamma)

    def moment(self, i: int, loss: Tensor | None) -> Context:
        """A run's context after an update."""
        self.bring_up_to_date(i)
        return make_context(self.tasks[i], self.learners[i], loss)

    def interact(self) -> None:
        """A step of every run's environment and the updates that are due."""
        config, task, before = self.config, self.tasks[0], self.step
        since = self.phase_step if task.knows_boundaries else before
        actions = self.choose_actions()
        self.step += 1
        self.phase_step += 1
        if since >= config.learning_starts:
            due = int(self.step * config.updates_per_step) - int(before * config.updates_per_step)
            if due:
                self.learn(due)
            if crossed(self.step, 1, config.target_every):
                for name, whole in self.target.parameters.items():
                    whole.detach().copy_(self.online.parameters[name].detach())
        self.move(actions)
        if self.step % FOLLOW == 0 or config.replay.segment < 2 * FOLLOW:
            for i in self.going:
                self.stores[i].follow(self.learners[i].replay)

    def choose_actions(self) -> np.ndarray:
        """Epsilon-greedy actions, (S,), each with its run's own random numbers."""
        assert self.quick is not None
        rate = exploration_rate(self.tasks[0], self)
        greedy = np.zeros(len(self.runs), np.int64)
        if rate < 1:
            greedy = self.quick.greedy(torch.from_numpy(self.observations)[:, None])[:, 0].numpy()
        count = self.tasks[0].actions
        for i, learner in enumerate(self.learners):
            explores = torch.rand(1, generator=learner.exploring) < rate
            other = torch.randint(count, (1,), generator=learner.exploring)
            if explores:
                greedy[i] = other.item()
        return greedy

    def learn(self, updates: int) -> None:
        """Make this many updates of each run."""
        assert self.quick is not None
        size = self.config.batch_size
        drawn = self.replay.sample(updates * size, [learner.sampling for learner in self.learners])
        x, following, actions, rewards, terminated = drawn
        if self.config.reward_clip:
            rewards = rewards.sign()
        targets = self.quick.targets(following, rewards, terminated)
        for begin in range(0, updates * size, size):
            part = slice(begin, begin + size)
            losses, values = self.quick.gradients(x[:, part], actions[:, part], targets[:, part])
            if self.methods is not None:
                self.methods.add_penalties()
            self.quick.optimizer.step()
            self.updates += 1
            self.updates_since += 1
            self.loss_sum += losses
            self.value_sum += values
            if self.methods is not None:
                self.methods.after_step(losses)

    def move(self, actions: np.ndarray) -> None:
        """Step the environments, and append what they show to the replays."""
        frames = np.empty_like(self.observations[:, 0])
        rewards, ends = np.zeros(len(self.runs), np.float32), np.zeros(len(self.runs), bool)
        begun: list[tuple[int, Tensor]] = []
        for i, (task, learner) in enumerate(zip(self.tasks, self.learners, strict=True)):
            step = learner.env.step_one(int(actions[i]))
            frames[i], rewards[i], ends[i] = step.frame, step.reward, step.terminated
            self.observations[i] = step.frame
            if step.ended is not None:
                learner.returns.append(step.ended)
                if task.benchmark is not None:
                    learner.of_tasks.add(self.phase_step, [step.ended])
                assert step.first is not None
                begun.append((i, step.first))
                self.observations[i] = step.first[0].numpy()
        self.replay.append(frames, actions, rewards, ends)
        for i, first in begun:
            self.learners[i].replay.start(torch.arange(1), first)

    def make_rows(self, evaluates: bool) -> None:
        """The rows of this step."""
        touched = self.methods is not None and self.learners[0].method.overrides("after_epoch")
        if touched:
            self.write_back()
        if self.methods is not None:
            self.methods.share_time()
        for i in self.going:
            self.bring_up_to_date(i)
            self.attempt(i, functools.partial(self.make_one_row, i, evaluates))
        if touched and self.methods is not None:
            self.methods.read_again()
            self.renew_updates()
        self.clear_sums()

    def make_one_row(self, i: int, evaluates: bool) -> None:
        """One of them."""
        task, learner = self.tasks[i], self.learners[i]
        learner.row = make_row(task, learner, evaluates)
        if self.methods is not None:
            with self.as_seed(i):
                last = learner.step >= task.total_steps
                act_after_row(learner, learner.net, make_context(task, learner), last)
        self.runs[i].log(learner.row)

    def save(self) -> None:
        """A checkpoint of each run."""
        self.write_back()
        for i in self.going:
            self.bring_up_to_date(i)
            seeding.set_rng_state(self.generators[i])
            self.attempt(i, functools.partial(save, self.tasks[i], self.learners[i], self.runs[i], self.stores[i]))

    def write_back(self) -> None:
        """Bring the runs' optimizers and methods up to date."""
        if self.quick is not None:
            self.quick.write_back()
        if self.methods is not None:
            self.methods.write_back()

    def bring_up_to_date(self, i: int) -> None:
        """A learner's counters and sums, of which the stack keeps those of all runs."""
        learner = self.learners[i]
        learner.phase, learner.phase_step, learner.step = self.phase, self.phase_step, self.step
        learner.updates, learner.updates_since = self.updates, self.updates_since
        learner.seconds = self.before[i] + self.seconds / len(self.runs)  # a run's share
        learner.loss_sum, learner.value_sum = self.loss_sum[i].clone(), self.value_sum[i].clone()

    def clear_sums(self) -> None:
        """Start counting for the next rows."""
        self.loss_sum, self.value_sum = torch.zeros(len(self.runs)), torch.zeros(len(self.runs))
        self.updates_since = 0
        if self.step == 0:
            self.observations = np.zeros((len(self.runs), 1, *self.tasks[0].frame), np.float32)
