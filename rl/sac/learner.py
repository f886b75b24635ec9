"""All that changes while SAC trains, and its checkpoint."""

import contextlib
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from fire_core.methods import Method, Net
from harness.training import seeding
from harness.training.measure import Meter
from rl.common.learner import AgentLearner
from rl.sac.control import Statistics
from rl.sac.networks import Actor, Critics, part, plain_critic
from rl.sac.task import Task
from rl.sac.transitions import Transitions
from rl.sac.update import NAMES, Batch, Temperature, Update, adamw, compiled
from rl.sac.workers import Workers


@dataclass(kw_only=True)
class Learner(AgentLearner):
    """All that changes while SAC trains."""

    temperature: Temperature
    replay: Transitions
    statistics: Statistics
    workers: Workers
    generator: torch.Generator  # of action noise, noise within updates and the choice of transitions
    agent: Update = field(init=False)  # the networks' update, with the optimizers
    update: Callable[[Batch, Tensor, tuple[Tensor, Tensor]], Tensor] = field(init=False)  # it as it is called
    separate: Net = field(init=False)  # the actor and each critic alone, as views into the batched tensors

    PARTS = (*AgentLearner.PARTS, "temperature", "statistics", "workers")
    GENERATORS = ("generator",)

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Networks at their initial weights, an empty replay, environments at their first step."""
        config = task.config
        net = Net.of({name: copy.deepcopy(module).to(task.device) for name, module in task.modules.items()}, "sac")
        net.targets["critic"] = copy.deepcopy(net.modules["critic"]).requires_grad_(False)
        learner = cls(
            net=net,
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
        learner.renew_optimizers(task)
        learner.prepare(task)
        return learner

    def renew_optimizers(self, task: Task) -> None:
        """A new optimizer for each network, which the method may choose, and for the temperature."""
        config = task.config
        default = functools.partial(adamw, lr=config.lr, weight_decay=config.weight_decay)
        chooses = task.method_optimizes(self.phase)
        self.optimizers = {
            name: self.method.optimizer(alone(self.net, name), default) if chooses else default(module.parameters())
            for name, module in self.net.modules.items()
        }
        self.optimizers["temperature"] = adamw(self.temperature.parameters(), config.lr, 0.0)

    def prepare(self, task: Task) -> None:
        """The update of the networks and optimizers as they are now."""
        config, actor, critic = task.config, self.net.modules["actor"], self.net.modules["critic"]
        target = self.net.targets["critic"]
        assert isinstance(actor, Actor)
        assert isinstance(critic, Critics)
        assert isinstance(target, Critics)
        self.separate = separated(self.net)
        entropy = config.target_entropy * task.actions
        self.agent = Update(actor, critic, target, self.temperature, self.optimizers, task.gamma, config.tau, entropy)
        if task.method_acts_in(self.phase):
            # Within an update that is compiled, the method's time cannot be taken.
            meter = self.method_meter if config.compile == "off" else None
            self.agent.penalty = functools.partial(penalty, self.method, self.net, meter)
        self.update = self.agent if config.compile == "off" else compiled(self.agent, config.compile)

    def close(self) -> None:
        """End the threads and close the environments."""
        self.workers.close()

    @property
    def turns(self) -> int:
        """Decisions of one environment; draws are seeded by them."""
        return self.step // len(self.workers.workers)

    @property
    def actor(self) -> Actor:
        """The policy."""
        return self.agent.actor

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay must be loaded."""
        if task.tasks is not None:
            self.workers.choose(state["phase"])
        super().load_state_dict(task, state)
        self.prepare(task)


def penalty(method: Method, net: Net, meter: Meter | None, name: str) -> Tensor | None:
    """The method's, of one network; `meter` takes its time."""
    if name not in net.modules:
        return None
    with contextlib.nullcontext() if meter is None else meter:
        return method.penalty(alone(net, name))


def alone(net: Net, name: str) -> Net:
    """One network of several."""
    return Net({name: net.modules[name]}, {name: net.init[name]}, net.layout)


def separated(net: Net) -> Net:
    """The actor and each critic alone, as views into the batched tensors, for methods that act on single units."""
    critics = net.modules["critic"]
    assert isinstance(critics, Critics)
    modules = {"actor": net.modules["actor"]}
    init, start = {"actor": net.init["actor"]}, net.init["critic"]
    names = [name for name, _ in critics.named_parameters()]
    for i in range(critics.n):
        modules[f"critic{i}"] = critic = plain_critic(critics, i)
        pairs = zip((name for name, _ in critic.named_parameters()), names, strict=True)
        init[f"critic{i}"] = {
            mine: part(start[name], i, critics.n) for mine, name in pairs if name in start
        }  # else new
    return Net(modules, init, "sac")


def share_state(learner: Learner) -> list[Optimizer]:
    """Give the separate critics their parts of the gradients; the actor's optimizer and one with each critic's part of
    the moments."""
    critics, optimizer = learner.agent.critic, learner.optimizers["critic"]
    optimizers = [learner.optimizers["actor"]]
    for i in range(critics.n):
        views = list(learner.separate.modules[f"critic{i}"].parameters())
        optimizers.append(AdamW(views))
        for view, whole in zip(views, critics.parameters(), strict=True):
            view.grad = None if whole.grad is None else part(whole.grad, i, critics.n)
            optimizers[-1].state[view] = {
                key: part(value, i, critics.n) if value.shape == whole.shape else value
                for key, value in optimizer.state.get(whole, {}).items()
            }
    return optimizers
