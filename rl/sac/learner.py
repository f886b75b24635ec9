"""The training state of SAC (networks, optimizers, replay, environments, statistics) and its checkpoint."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from fire_core.methods import Net
from harness.training import seeding
from harness.training.measure import Meter
from rl.common.learner import AgentLearner
from rl.sac.control import Statistics
from rl.sac.networks import Actor, Temperature
from rl.sac.task import Task
from rl.sac.transitions import Batch, Transitions
from rl.sac.workers import Workers

NAMES = ("train/critic_loss", "train/actor_loss", "train/entropy", "train/q")  # row columns, in the order of `sums`


@dataclass(kw_only=True)
class Learner(AgentLearner):
    """The training state of SAC.

    Attributes:
        critics: the critics of `net`: two for clipped double Q-learning, otherwise one.
        target_critics: slowly moving copies of the critics, in the same order; they are the targets of `net`.
        temperature: the weight of the policy's entropy.
        replay: the newest transitions of every environment.
        statistics: running mean and variance of observations, which normalise them.
        workers: the environments, which step in threads.
        generator: draws the noise of actions, the noise within updates and the transitions of batches.
    """

    critics: nn.ModuleList
    target_critics: nn.ModuleList
    temperature: Temperature
    replay: Transitions
    statistics: Statistics
    workers: Workers
    generator: torch.Generator

    PARTS = (*AgentLearner.PARTS, "temperature", "statistics", "workers")
    GENERATORS = ("generator",)

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Return the state at the start: initial weights, an empty replay, environments at their first step."""
        config = task.config
        net = Net.of({name: copy.deepcopy(module).to(task.device) for name, module in task.modules.items()}, "sac")
        critics = [name for name in net.modules if name != "actor"]
        net.targets = {name: copy.deepcopy(net.modules[name]).requires_grad_(False).eval() for name in critics}
        if config.compile != "off":
            torch.compiler.reset()
            for network in (*net.modules.values(), *net.targets.values()):
                network.compile(mode=config.compile, dynamic=False)
        rows = config.replay_size if task.trains else config.num_envs
        return cls(
            net=net,
            critics=nn.ModuleList(net.modules[name] for name in critics),
            target_critics=nn.ModuleList(net.targets[name] for name in critics),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            trigger=copy.deepcopy(task.trigger),
            temperature=Temperature(config.temperature).to(task.device),
            replay=Transitions(rows, config.num_envs, task.observations, task.actions, task.device),
            statistics=Statistics(task.observations),
            workers=Workers(task.control, config.num_envs, config.seed, task.tasks),
            generator=seeding.generator(config.seed, "stream", 0),
            sums=torch.zeros(len(NAMES), device=task.device),
        )

    @property
    def actor(self) -> Actor:
        """The policy."""
        actor = self.net.modules["actor"]
        assert isinstance(actor, Actor)
        return actor

    def renew_optimizers(self, task: Task) -> None:
        """Create the optimizers of actor, critics and temperature; the method may choose those of actor and critics."""
        config, method = task.config, self.method

        def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return adamw(parameters, config.lr, config.weight_decay)

        self.optimizers = {}
        method_chooses = task.method_optimizes(self.phase)
        for name, subnet in {"actor": self._subnet(critics=False), "critics": self._subnet(critics=True)}.items():
            if method_chooses:
                self.optimizers[name] = method.optimizer(subnet, default)
            else:
                self.optimizers[name] = default(subnet.parameters())
        self.optimizers["temperature"] = adamw(self.temperature.parameters(), config.lr, 0.0)

    def _subnet(self, critics: bool) -> Net:
        """Return the part of `net` that one optimizer trains: all critics, or the actor."""
        names = [name for name in self.net.modules if (name != "actor") == critics]
        modules = {name: self.net.modules[name] for name in names}
        return Net(modules, {name: self.net.init[name] for name in names}, self.net.layout)

    def close(self) -> None:
        """End the threads and close the environments."""
        self.workers.close()

    @property
    def turns(self) -> int:
        """Decisions that each environment has made so far; seeds of draws are derived from this number."""
        return self.step // len(self.workers.workers)

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay must have been loaded before."""
        if task.is_stream:
            self.workers.choose(state["phase"])
        super().load_state_dict(task, state)


def normalise(task: Task, learner: Learner, batch: Batch) -> Batch:
    """Return transitions (..., B) with observations normalised by the present statistics."""
    statistics = learner.statistics.tensors(task.device)
    return batch._replace(
        observation=normalised(batch.observation, statistics),
        next_observation=normalised(batch.next_observation, statistics),
    )


def adamw(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> AdamW:
    """Return AdamW over the parameters that are not frozen.

    Weight decay applies to all of them, biases and normalisation too, as in the FIRE authors' code.
    """
    trained = [p for p in parameters if p.requires_grad]
    return AdamW(trained, lr=lr, weight_decay=weight_decay, fused=True)


def normalised(x: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
    """Return `x`, (..., o), normalised by `statistics`: the mean and 1 / standard deviation, (o,) each."""
    mean, scale = statistics
    return (x - mean) * scale
