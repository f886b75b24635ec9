"""Runs of SAC that differ in their seed alone, trained together: what `rl.common.stack` leaves open."""

import contextlib
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fire_core.harness.run.folder import Run
from fire_core.harness.stacked.method import SeparateMethods, choose_methods, choose_optimizer
from fire_core.harness.stacked.network import StackedNetworks
from fire_core.harness.training.measure import Meter, check_finite
from fire_core.methods import Context, Method, Net
from rl.common.replay_store import RingStore
from rl.common.stack import AgentStack, BeginPhase, Fire
from rl.sac.control import Statistics
from rl.sac.learner import Learner, separated
from rl.sac.phase import decisions_made, make_context, make_row, save, start_trigger, summarise
from rl.sac.quick import Policy, QuickUpdate
from rl.sac.stack.update import stacked_update
from rl.sac.task import Task
from rl.sac.transitions import StackedTransitions, batch_at
from rl.sac.update import NAMES, Batch, normalised


@dataclass
class Part:
    """One network of a run, for what acts on it alone."""

    net: Net
    method: Method
    method_meter: Meter
    optimizer: Optimizer | None


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
        stores = [RingStore(run.folder / "replay") for run in runs]
        super().__init__(tasks, runs, [Learner.new(task) for task in tasks], stores, opened, act, fire)
        for task in tasks:
            opened.callback(task.close)
        nets = [learner.net for learner in self.learners]
        self.networks = {
            "actor": StackedNetworks([net.modules["actor"] for net in nets]),
            "critic": StackedNetworks([net.modules["critic"] for net in nets]),
            "target": StackedNetworks([net.targets["critic"] for net in nets]),
            "temperature": StackedNetworks([learner.temperature for learner in self.learners]),
        }
        for task, learner in zip(tasks, self.learners, strict=True):
            learner.prepare(task)  # with optimizers of the weights where they now lie
        self.replay = StackedTransitions([learner.replay for learner in self.learners])
        self.statistics = Statistics((len(runs), tasks[0].observations), self.config.normalize_observations)
        self.update: QuickUpdate | None = None
        self.policies: list[Policy] = []
        self.clear_sums()

    def take_over(self, i: int) -> None:
        learner = self.learners[i]
        self.counted, self.waited = learner.counted, learner.waited * len(self.runs)
        self.sums[i] = learner.sums

    def parts(self, name: str) -> list[Part]:
        """A network of each run."""
        parts = []
        for one in self.learners:
            alone = Net({}, {}, "sac")
            if name in one.net.modules:
                alone = Net({name: one.net.modules[name]}, {name: one.net.init[name]}, one.net.layout)
            parts.append(Part(alone, one.method, one.method_meter, one.agent.optimizers[name]))
        return parts

    def choose_methods(self) -> dict[str, SeparateMethods]:
        return {
            name: choose_methods(
                self.parts(name), lambda: self.going, self.moment, self.as_seed, {name: self.networks[name]}
            )
            for name in ("actor", "critic")
        }

    def moment(self, i: int, loss: Tensor | None) -> Context:
        """A run's context after an update, which no method of SAC asks for (`rl.sac.task.NO_PLACE`)."""
        return make_context(self.tasks[i], self.learners[i])

    def renew_updates(self) -> None:
        optimizers = {
            name: choose_optimizer(self.parts(name), self.networks[name], self.methods.get(name), self.as_seed)
            for name in self.learners[0].agent.optimizers
        }
        self.optimizers = optimizers
        self.update = stacked_update(self.learners[0].agent, self.networks, optimizers, self.methods)
        self.policies = [Policy(learner.actor) for learner in self.learners]
        several = [learner.statistics for learner in self.learners]
        self.statistics.mean = np.stack([one.mean for one in several])
        self.statistics.variance = np.stack([one.variance for one in several])
        self.statistics.count = np.stack([np.array([one.count]) for one in several])

    def write_optimizers(self) -> None:
        if self.update is not None:
            for optimizer in self.optimizers.values():
                optimizer.write_back()

    def interact(self) -> None:
        learns = decisions_made(self.tasks[0], self) >= self.config.random_steps
        actions = self.choose_actions(learns)
        self.losses = self.learn() if learns else None
        self.move(actions)

    @torch.inference_mode()
    def choose_actions(self, learns: bool) -> list[np.ndarray]:
        """Of each run, with its own random numbers, (actions,); see `rl.sac.train.choose_actions`."""
        observations = np.stack([learner.workers.workers[0].observation for learner in self.learners])
        self.statistics.update(observations[None])
        shape = 1, self.tasks[0].actions
        if not learns:
            return [(torch.rand(shape, generator=one.generator) * 2 - 1)[0].numpy() for one in self.learners]
        x = normalised(torch.from_numpy(observations), self.statistics.tensors(torch.device("cpu")))
        noise = [torch.randn(shape, generator=learner.generator) for learner in self.learners]
        return [policy.act(x[i : i + 1], noise[i])[0][0].numpy() for i, policy in enumerate(self.policies)]

    def learn(self) -> Tensor:
        """The updates of each run that belong to one decision; the last one's critic losses, (S,)."""
        assert self.update is not None
        count, size, generators = self.config.updates, self.config.batch_size, [one.generator for one in self.learners]
        drawn = self.replay.sample(count, size, generators)
        shape = count, 2, size, self.tasks[0].actions
        noise = torch.stack([torch.randn(shape, generator=generator) for generator in generators], 2)
        mean, scale = self.statistics.tensors(torch.device("cpu"))
        for i in range(count):
            found = self.update(batch_at(drawn, i), noise[i], (mean[:, None], scale[:, None]))
            self.sums += found
            self.counted += 1
            self.updates += 1
        return found[:, 0]

    def move(self, actions: list[np.ndarray]) -> None:
        """Step the environments, and append what they show to the replays. Those of failed runs are given no action.

        Simulators end the whole process where an action is not finite.
        """
        for i in list(self.going):
            self.attempt(i, functools.partial(check_finite, self.step, torch.from_numpy(actions[i])))
        actions = [action if i in self.going else np.zeros_like(action) for i, action in enumerate(actions)]
        before = time.monotonic()
        pairs = zip(self.learners, actions, strict=True)
        stepped = [learner.workers.workers[0].step(action) for learner, action in pairs]
        self.waited += time.monotonic() - before
        columns = (
            [getattr(s, name) for s in stepped] for name in ("before", "action", "reward", "terminated", "following")
        )
        self.replay.add(Batch(*(torch.from_numpy(np.array(column, np.float32)) for column in columns)))
        self.step += 1
        self.phase_step += 1
        for task, learner, one in zip(self.tasks, self.learners, stepped, strict=True):
            if one.ended is not None:
                learner.returns.append(one.ended[0])
                if task.tasks is not None:
                    learner.of_tasks.add(self.phase_step, [one.ended[0]])

    def start_trigger(self, i: int) -> Net:
        return start_trigger(self.tasks[i], self.learners[i])

    def row_due(self, ended: bool) -> bool:
        return ended or self.step % self.tasks[0].eval_every == 0

    def row(self, i: int) -> dict[str, Any]:
        return make_row(self.tasks[i], self.learners[i])

    def after_row(self, i: int) -> tuple[Net, Context]:
        net, optimizers = separated(self.learners[i])
        context = make_context(self.tasks[i], self.learners[i], net)
        context.optimizers = optimizers
        return net, context

    def summarise(self, i: int) -> dict[str, Any]:
        return summarise(self.learners[i])

    def save_one(self, i: int) -> None:
        save(self.tasks[i], self.learners[i], self.runs[i], self.stores[i])

    def bring_up_to_date(self, i: int) -> None:
        super().bring_up_to_date(i)
        learner, own = self.learners[i], self.learners[i].statistics
        learner.counted, learner.sums = self.counted, self.sums[i].clone()
        learner.waited = self.waited / len(self.runs)
        if self.update is not None:
            own.mean, own.variance = self.statistics.mean[i], self.statistics.variance[i]
            own.count = float(np.asarray(self.statistics.count)[i, 0])

    def clear_sums(self) -> None:
        self.sums, self.counted, self.waited = torch.zeros(len(self.runs), len(NAMES)), 0, 0.0
