"""All that changes while SAC trains, and its checkpoint."""

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
from rl.sac.transitions import Transitions
from rl.sac.workers import Workers

NAMES = ("train/critic_loss", "train/actor_loss", "train/entropy", "train/q")  # columns of what `train_step` adds up


@dataclass(kw_only=True)
class Learner(AgentLearner):
    """All that changes while SAC trains.

    Attributes:
        critics: those of `net`, two or one.
        target_critics: their slow copies, the targets of `net`.
        temperature: weight of the entropy.
        replay: the transitions.
        statistics: of observations.
        workers: step the environments.
        generator: of action noise, of noise within updates and of the choice of transitions.
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
        """Networks at their initial weights, an empty replay, environments at their first step."""
        config = task.config
        net = Net.of({name: copy.deepcopy(module).to(task.device) for name, module in task.modules.items()}, "sac")
        critics = [name for name in net.modules if name != "actor"]
        net.targets = {name: copy.deepcopy(net.modules[name]).requires_grad_(False) for name in critics}
        if config.compile != "off":
            torch.compiler.reset()
            for network in (*net.modules.values(), *net.targets.values()):
                network.compile(mode=config.compile, dynamic=False)
        return cls(
            net=net,
            critics=nn.ModuleList(net.modules[name] for name in critics),
            target_critics=nn.ModuleList(net.targets[name] for name in critics),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            trigger=copy.deepcopy(task.trigger),
            temperature=Temperature(config.temperature).to(task.device),
            replay=Transitions(config.replay_size, config.num_envs, task.observations, task.actions, task.device),
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
        """New optimizers: those of the actor and of the critics, which the method may choose, and the temperature's."""
        config, method = task.config, self.method

        def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return adamw(parameters, config.lr, config.weight_decay)

        self.optimizers = {}
        for name, part in {"actor": self._part(critics=False), "critics": self._part(critics=True)}.items():
            chooses = task.method_optimizes(self.phase)
            self.optimizers[name] = method.optimizer(part, default) if chooses else default(part.parameters())
        self.optimizers["temperature"] = adamw(self.temperature.parameters(), config.lr, 0.0)

    def _part(self, critics: bool) -> Net:
        """The networks that one optimizer trains: the critics, or the actor."""
        names = [name for name in self.net.modules if (name != "actor") == critics]
        modules = {name: self.net.modules[name] for name in names}
        return Net(modules, {name: self.net.init[name] for name in names}, self.net.layout)

    def close(self) -> None:
        """End the threads and close the environments."""
        self.workers.close()

    @property
    def turns(self) -> int:
        """Decisions of one environment; draws are seeded by them."""
        return self.step // len(self.workers.workers)

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay must be loaded."""
        if task.tasks is not None:
            self.workers.choose(state["phase"])
        super().load_state_dict(task, state)


def adamw(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> AdamW:
    """AdamW that decays every parameter, biases and norms too, as the FIRE authors' code does; frozen ones are left."""
    trained = [p for p in parameters if p.requires_grad]
    return AdamW(trained, lr=lr, weight_decay=weight_decay, fused=True)


def normalised(x: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
    """Observations (..., o) less their mean, times 1 / deviation, (o,) each."""
    mean, scale = statistics
    return (x - mean) * scale
