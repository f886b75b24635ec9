"""All that changes while SAC trains, and its checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from fire_core.harness.options.build import build
from fire_core.harness.training import seeding
from fire_core.harness.training.measure import Meter
from fire_core.methods import Method, Net
from rl.common.replay_store import RingStore
from rl.sac.control import Statistics, Workers
from rl.sac.networks import Actor, Critics, part, plain_critic
from rl.sac.task import Task
from rl.sac.transitions import Transitions
from rl.sac.update import NAMES, Batch, CudaGraph, Temperature, Update, compiled


@dataclass
class Learner:
    """All that changes while training, which is all that a checkpoint holds."""

    net: Net
    method: Method
    temperature: Temperature
    replay: Transitions
    statistics: Statistics
    workers: Workers
    generator: torch.Generator  # of action noise, noise within updates and the choice of transitions
    agent: Update = field(init=False)  # the networks' update, with the optimizers
    update: Callable[[Batch, Tensor, tuple[Tensor, Tensor]], Tensor] = field(init=False)  # the same, made fast
    timed: bool = field(init=False)  # whether `method_meter` sees what the method does within updates
    method_meter: Meter = field(init=False)  # of the method's work since the last row
    phase: int = 0
    step: int = 0  # decisions, of all environments together
    updates: int = 0
    seconds: float = 0.0  # of training, over all processes that worked on the run
    waited: float = 0.0  # of these, for environments
    sums: Tensor = field(init=False)  # over the updates since the last row, of what `NAMES` says
    counted: int = 0  # these updates
    returns: list[float] = field(default_factory=list)  # of training episodes that ended since the last row
    row: dict[str, Any] = field(default_factory=dict)  # the last one logged

    PLAIN = ("phase", "step", "updates", "seconds", "waited", "sums", "counted", "returns", "row")
    PARTS = ("temperature", "statistics", "workers")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Networks at their initial weights, an empty replay, environments at their first step."""
        seed = task.config.seed
        seeding.seed_everything(seeding.derive(seed, "init"))
        net = Net.of({"actor": task.actor(), "critic": task.critics()}, "sac")
        net.targets["critic"] = task.critics().requires_grad_(False)
        net.targets["critic"].load_state_dict(net.modules["critic"].state_dict())
        learner = cls(
            net,
            build("method", task.config.method),
            Temperature(task.config.temperature).to(task.device),
            Transitions(task.config.replay_size, task.config.num_envs, task.observations, task.actions, task.device),
            Statistics(task.observations, task.config.normalize_observations),
            Workers(task.control, task.config.num_envs, seed),
            seeding.generator(seed, "stream", 0),
        )
        learner.method_meter = Meter(task.device)
        learner.clear_sums(task.device)
        learner.prepare(task)
        return learner

    def prepare(self, task: Task) -> None:
        """New optimizers and a fast update for the networks as they are now."""
        target = self.net.targets["critic"]
        assert isinstance(target, Critics)
        self.agent = task.agent(self.net, target, self.temperature)
        self.agent.penalty = self.penalty if self.phase > 0 and self.method.acts_within_phases else None
        self.make_fast(task)

    def make_fast(self, task: Task) -> None:
        """Compile and record the update, where that is asked for."""
        cuda = task.device.type == "cuda"
        compile_it = cuda if task.config.compile is None else task.config.compile
        self.update = compiled(self.agent) if compile_it else self.agent
        if cuda and task.config.cuda_graph is not False:
            self.update = CudaGraph(self.update)
        self.timed = self.update is self.agent

    def penalty(self, name: str) -> Tensor | None:
        """The method's, of one network. Its time is only taken where the update is neither compiled nor recorded."""
        if name not in self.net.modules:
            return None
        net = Net({name: self.net.modules[name]}, {name: self.net.init[name]}, "sac")
        if not self.timed:
            return self.method.penalty(net)
        with self.method_meter:
            return self.method.penalty(net)

    def clear_sums(self, device: torch.device) -> None:
        """Start counting for the next row."""
        self.sums, self.counted, self.returns, self.waited = torch.zeros(len(NAMES), device=device), 0, [], 0.0

    @property
    def actor(self) -> Actor:
        """The policy."""
        return self.agent.actor

    def state_dict(self, replay: dict[str, Any]) -> dict[str, Any]:
        """For `Run.checkpoint`; `replay`: where the replay's segments lie, or the replay itself."""
        return {
            "replay": replay,
            "modules": {name: module.state_dict() for name, module in self.net.modules.items()},
            "targets": {name: module.state_dict() for name, module in self.net.targets.items()},
            "init": self.net.init,
            "method": self.method.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.agent.optimizers.items()},
            "rng": seeding.rng_state(),
            "generator": self.generator.get_state(),
            **{key: getattr(self, key).state_dict() for key in self.PARTS},
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, task: Task, state: dict[str, Any], store: RingStore) -> None:
        """Go on from `state_dict`'s state."""
        if "columns" in state["replay"]:
            self.replay.load_state_dict(state["replay"])
        else:
            origin = [Path(state["origin"]) / "replay"] if "origin" in state else []
            store.load(self.replay, state["replay"], origin)
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
        for key in self.PARTS:
            getattr(self, key).load_state_dict(state[key])
        self.prepare(task)
        for name, optimizer in self.agent.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        seeding.set_rng_state(state["rng"])
        self.generator.set_state(state["generator"].cpu())


def apart(learner: Learner) -> tuple[Net, list[Optimizer]]:
    """The actor and each critic by itself, and optimizers of theirs: views into the batched tensors, for methods that
    look at single units."""
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
