"""All that changes while SAC trains, and its checkpoint."""

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
from harness.training.firing import load_trigger, trigger_state
from harness.training.measure import Meter
from rl.common.learner import AgentLearner
from rl.sac.control import Statistics
from rl.sac.networks import Actor, Critics, part, plain_critic
from rl.sac.task import Task
from rl.sac.transitions import Transitions
from rl.sac.update import NAMES, Batch, CudaGraph, Temperature, Update, adamw, compiled
from rl.sac.workers import Workers


@dataclass(kw_only=True)
class Learner(AgentLearner):
    """All that changes while training, which is all that a checkpoint holds. Steps are decisions, of all environments
    together."""

    temperature: Temperature
    replay: Transitions
    statistics: Statistics
    workers: Workers
    generator: torch.Generator  # of action noise, noise within updates and the choice of transitions
    agent: Update = field(init=False)  # the networks' update, with the optimizers
    update: Callable[[Batch, Tensor, tuple[Tensor, Tensor]], Tensor] = field(init=False)  # it as it is called
    waited: float = 0.0  # of `seconds`, for environments
    sums: Tensor  # over the updates since the last row, of what `NAMES` says
    counted: int = 0  # these updates

    PLAIN = (*AgentLearner.PROGRESS, "updates", "waited", "sums", "counted", "returns")
    PARTS = ("temperature", "statistics", "workers")

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
            statistics=Statistics(task.observations, config.normalize_observations),
            workers=Workers(task.control, config.num_envs, config.seed, task.tasks),
            generator=seeding.generator(config.seed, "stream", 0),
            sums=torch.zeros(len(NAMES), device=task.device),
        )
        learner.prepare(task)
        return learner

    def prepare(self, task: Task, optimizers: dict[str, Optimizer] | None = None) -> None:
        """The update of the networks as they are now; `optimizers`: None: new ones."""
        config, actor, critic = task.config, self.net.modules["actor"], self.net.modules["critic"]
        target = self.net.targets["critic"]
        assert isinstance(actor, Actor)
        assert isinstance(critic, Critics)
        assert isinstance(target, Critics)
        if optimizers is None:
            optimizers = {
                "actor": adamw(actor.parameters(), config.lr, config.weight_decay),
                "critic": adamw(critic.parameters(), config.lr, config.weight_decay),
                "temperature": adamw(self.temperature.parameters(), config.lr, 0.0),
            }
        entropy = config.target_entropy * task.actions
        self.agent = Update(actor, critic, target, self.temperature, optimizers, task.gamma, config.tau, entropy)
        if task.method_acts_in(self.phase):
            # Within an update that is compiled or recorded, the method's time cannot be taken.
            meter = None if task.compiles or task.records else self.method_meter
            self.agent.penalty = functools.partial(penalty, self.method, self.net, meter)
        self.update = compiled(self.agent) if task.compiles else self.agent
        if task.records:
            self.update = CudaGraph(self.update)

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        self.sums, self.counted, self.returns, self.waited = torch.zeros_like(self.sums), 0, [], 0.0

    def close(self) -> None:
        """End the threads and close the environments."""
        self.workers.close()

    @property
    def actor(self) -> Actor:
        """The policy."""
        return self.agent.actor

    def state_dict(self) -> dict[str, Any]:
        """All but the replay, see `rl.common.checkpoint`."""
        return {
            "modules": {name: module.state_dict() for name, module in self.net.modules.items()},
            "targets": {name: module.state_dict() for name, module in self.net.targets.items()},
            "init": self.net.init,
            "method": self.method.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.agent.optimizers.items()},
            "rng": seeding.rng_state(),
            "trigger": trigger_state(self.trigger),
            "generator": self.generator.get_state(),
            "of_tasks": self.of_tasks.state_dict(),
            "begin": self.replay.begin,
            **{key: getattr(self, key).state_dict() for key in self.PARTS},
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay must be loaded."""
        self.net.init = state["init"]
        for key in self.PLAIN:
            setattr(self, key, state[key])
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        for name, module in self.net.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, module in self.net.targets.items():
            module.load_state_dict(state["targets"][name])
        self.replay.begin = state["begin"]
        if task.tasks is not None:
            self.of_tasks.load_state_dict(state["of_tasks"])
            self.workers.choose(self.phase)
        for key in self.PARTS:
            getattr(self, key).load_state_dict(state[key])
        self.prepare(task)
        for name, optimizer in self.agent.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        seeding.set_rng_state(state["rng"])
        load_trigger(self.trigger, state.get("trigger"))
        self.generator.set_state(state["generator"].cpu())


def penalty(method: Method, net: Net, meter: Meter | None, name: str) -> Tensor | None:
    """The method's, of one network; `meter` takes its time."""
    if name not in net.modules:
        return None
    alone = Net({name: net.modules[name]}, {name: net.init[name]}, net.layout)
    if meter is None:
        return method.penalty(alone)
    with meter:
        return method.penalty(alone)


def separated(learner: Learner) -> tuple[Net, list[Optimizer]]:
    """The actor and each critic alone, and their optimizers: views into the batched tensors, for methods that act on
    single units."""
    critics, own = learner.agent.critic, learner.agent.optimizers["critic"]
    plain = {f"critic{i}": plain_critic(critics, i) for i in range(critics.n)}
    optimizers = [learner.agent.optimizers["actor"]]
    for i, critic in enumerate(plain.values()):
        optimizer = AdamW(critic.parameters())
        for view, whole in zip(critic.parameters(), critics.parameters(), strict=True):
            state = own.state.get(whole, {})
            optimizer.state[view] = {
                key: part(value, i, critics.n) if value.shape == whole.shape else value for key, value in state.items()
            }
        optimizers.append(optimizer)
    start = learner.net.init["critic"]
    names = [name for name, _ in critics.named_parameters()]
    init = {"actor": learner.net.init["actor"]}
    for i, (key, critic) in enumerate(plain.items()):
        own_names = (name for name, _ in critic.named_parameters())
        pairs = zip(own_names, names, strict=True)
        init[key] = {mine: part(start[name], i, critics.n) for mine, name in pairs if name in start}  # none if injected
    return Net({"actor": learner.net.modules["actor"], **plain}, init, "sac"), optimizers
