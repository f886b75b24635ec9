"""Runs of DQN that differ in their seed alone, trained together: what `rl.common.stack` leaves open."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.harness.run.folder import Run
from fire_core.harness.stacked.method import SeparateMethods, choose_methods, choose_optimizer
from fire_core.harness.stacked.network import StackedNetworks
from fire_core.methods import Context, Net
from rl.common.replay_store import RingStore
from rl.common.stack import AgentStack, BeginPhase, Fire
from rl.dqn.learner import Learner
from rl.dqn.phase import crossed, exploration_rate, make_context, make_row, save, start_trigger, summarise
from rl.dqn.quick import QuickUpdates
from rl.dqn.stacked_replay import StackedReplay
from rl.dqn.task import Task


class Stack(AgentStack[Task, Learner]):
    """See `AgentStack`."""

    def __init__(
        self,
        tasks: Sequence[Task],
        runs: Sequence[Run],
        opened: contextlib.ExitStack,
        act: BeginPhase[Task, Learner],
        fire: Fire[Task, Learner],
    ) -> None:
        stores = [RingStore(run.folder / "replay", tasks[0].config.replay.segment) for run in runs]
        super().__init__(tasks, runs, [Learner.new(task) for task in tasks], stores, opened, act, fire)
        self.online = StackedNetworks([learner.q for learner in self.learners])
        self.target = StackedNetworks([learner.target for learner in self.learners])
        self.replay = StackedReplay([learner.replay for learner in self.learners])
        self.quick: QuickUpdates | None = None
        self.observations = np.zeros((len(runs), 1, *tasks[0].frame), np.float32)
        self.clear_sums()

    def take_over(self, i: int) -> None:
        learner = self.learners[i]
        self.updates_since = learner.updates_since
        self.loss_sum[i], self.value_sum[i] = learner.loss_sum, learner.value_sum
        self.observations[i] = learner.env.observations[0].numpy()

    def begun(self, i: int) -> None:
        learner = self.learners[i]
        if self.step == 0:
            learner.replay.start(torch.arange(1), learner.env.begin())
        self.observations[i] = learner.env.observations[0].numpy()

    def choose_methods(self) -> dict[str, SeparateMethods]:
        parts = (self.learners, lambda: self.going, self.moment, self.as_seed)
        return {"q": choose_methods(*parts, {"q": self.online})}

    def renew_updates(self) -> None:
        optimizer = choose_optimizer(self.learners, self.online, self.methods.get("q"), self.as_seed)
        self.quick = QuickUpdates(self.online, self.target, optimizer, self.config.gamma)

    def write_optimizers(self) -> None:
        if self.quick is not None:
            self.quick.write_back()

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
        self.losses = None
        if since >= config.learning_starts:
            due = int(self.step * config.updates_per_step) - int(before * config.updates_per_step)
            if due:
                self.learn(due)
            if crossed(self.step, 1, config.target_every):
                for name, whole in self.target.parameters.items():
                    whole.detach().copy_(self.online.parameters[name].detach())
        self.move(actions)

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
            for method in self.methods.values():
                method.add_penalties()
            self.quick.optimizer.step()
            self.updates += 1
            self.updates_since += 1
            self.losses = losses
            self.loss_sum += losses
            self.value_sum += values
            for method in self.methods.values():
                method.after_step(losses)

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

    def start_trigger(self, i: int) -> Net:
        return start_trigger(self.tasks[i], self.learners[i])

    def evaluates(self, ended: bool) -> bool:
        """Whether this step has an evaluation."""
        return ended or crossed(self.step, 1, self.config.eval.every)

    def row_due(self, ended: bool) -> bool:
        return self.evaluates(ended) or crossed(self.step, 1, self.config.log_every)

    def row(self, i: int) -> dict[str, Any]:
        ended = self.step >= self.tasks[i].phases[self.phase].end
        return make_row(self.tasks[i], self.learners[i], self.evaluates(ended))

    def after_row(self, i: int) -> tuple[Net, Context]:
        return self.learners[i].net, make_context(self.tasks[i], self.learners[i])

    def summarise(self, i: int) -> dict[str, Any]:
        return summarise(self.learners[i])

    def save_one(self, i: int) -> None:
        save(self.tasks[i], self.learners[i], self.runs[i], self.stores[i])

    def bring_up_to_date(self, i: int) -> None:
        super().bring_up_to_date(i)
        learner = self.learners[i]
        learner.updates_since = self.updates_since
        learner.loss_sum, learner.value_sum = self.loss_sum[i].clone(), self.value_sum[i].clone()

    def clear_sums(self) -> None:
        self.loss_sum, self.value_sum = torch.zeros(len(self.runs)), torch.zeros(len(self.runs))
        self.updates_since = 0
