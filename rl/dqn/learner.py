"""The state of a DQN run, and the passes through its networks."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.harness.options.build import build
from fire_core.harness.training import seeding
from fire_core.harness.training.measure import Meter
from fire_core.methods import Method, Net
from rl.dqn.frames import Batch, FrameReplay
from rl.dqn.task import Task, make_env
from rl.dqn.update import chosen, td_target

log = logging.getLogger(__name__)


@dataclass
class Learner:
    """All that changes while training, which is all that a checkpoint holds."""

    task: Task
    net: Net
    method: Method
    replay: FrameReplay
    phase: int = 0
    step: int = 0  # agent steps made, over all environments
    updates: int = 0  # of the network
    seconds: float = 0.0  # of training, over all processes that worked on the run
    optimizer: torch.optim.Optimizer | None = None
    loss_sum: Tensor = field(init=False)  # since the last row, as the next three
    value_sum: Tensor = field(init=False)  # mean value of the actions that were taken
    updates_since: int = 0
    returns: list[float] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # the last one logged
    evaluated: dict[str, float] = field(default_factory=dict)  # the last evaluation

    PLAIN = ("phase", "step", "updates", "seconds", "updates_since", "returns", "row", "evaluated")

    def __post_init__(self) -> None:
        config = self.task.config
        self.env = make_env(config, config.num_envs, "train")
        self.exploring = seeding.generator(config.seed, "exploration")
        self.sampling = seeding.generator(config.seed, "replay")
        self.method_meter = Meter(self.task.device)  # of the method's work within a phase
        # A second core works out the targets of coming updates; it adds in the same order as the first would.
        alone = self.task.device.type != "cpu" or config.compile != "off"
        self.helper = None if alone else ThreadPoolExecutor(1, thread_name_prefix="targets")
        self.clear_sums()
        self.build_functions()

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Networks at their initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        q, target = task.build_network(), task.build_network()
        target.load_state_dict(q.state_dict())
        net = Net.of({"q": q}, task.config.model.layout)
        net.targets["q"] = target
        return cls(task, net, build("method", task.config.method), task.build_replay())

    @property
    def q(self) -> nn.Module:
        """The network that is trained and acts."""
        return self.net.modules["q"]

    @property
    def target(self) -> nn.Module:
        """The network that the targets come from."""
        return self.net.targets["q"]

    def build_functions(self) -> None:
        """The three passes through the networks, compiled if asked for; anew when a method has changed modules."""
        task, gamma = self.task, self.task.config.gamma

        def greedy(observations: Tensor) -> Tensor:  # (envs, stack, ...) -> (envs,)
            with torch.no_grad(), task.autocast():
                return self.q(observations).argmax(1)

        def bootstrap(observations: Tensor, rewards: Tensor, terminated: Tensor) -> Tensor:
            with task.autocast():
                return td_target(self.target, observations, rewards, terminated, gamma)

        def values(observations: Tensor, actions: Tensor) -> Tensor:
            with task.autocast():
                return chosen(self.q, observations, actions)

        self.greedy, self.bootstrap, self.values = greedy, bootstrap, values
        if task.config.compile != "off":
            torch.compiler.reset()
            wrap: Any = functools.partial(torch.compile, mode=task.config.compile, dynamic=False)
            self.greedy, self.bootstrap, self.values = wrap(greedy), wrap(bootstrap), wrap(values)

    def close(self) -> None:
        """End the threads, and break the cycle of the functions with this object, which would keep the replay."""
        self.env.close()
        del self.greedy, self.bootstrap, self.values
        if self.helper is not None:
            self.helper.shutdown()

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        device = self.task.device
        self.loss_sum, self.value_sum = torch.zeros((), device=device), torch.zeros((), device=device)
        self.updates_since, self.returns = 0, []

    def state_dict(self) -> dict[str, Any]:
        """For `Run.checkpoint`, less the replay, which `rl.common.replay_store` keeps."""
        assert self.optimizer is not None
        return {
            "q": self.q.state_dict(),
            "target": self.target.state_dict(),
            "init": self.net.init["q"],
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "exploring": self.exploring.get_state(),
            "sampling": self.sampling.get_state(),
            "rng": seeding.rng_state(),
            "loss_sum": self.loss_sum,
            "value_sum": self.value_sum,
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`'s state; the replay must be loaded."""
        self.net.init["q"] = state["init"]
        for key in (*self.PLAIN, "loss_sum", "value_sum"):
            setattr(self, key, state[key])
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        self.q.load_state_dict(state["q"])
        self.target.load_state_dict(state["target"])
        self.optimizer = self.new_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        self.exploring.set_state(state["exploring"].cpu())
        self.sampling.set_state(state["sampling"].cpu())
        seeding.set_rng_state(state["rng"])
        if self.step < self.task.config.total_steps and not self.env.load_state_dict(state["env"]):
            log.warning("this version of the emulator does not repeat its episodes: new ones begin")
            self.replay.start(torch.arange(self.env.envs), self.env.begin())

    def new_optimizer(self) -> torch.optim.Optimizer:
        """An optimizer of the kind that this phase has."""
        anew = self.phase > 0 and self.task.config.boundary.optimizer == "new"
        return self.method.optimizer(self.net, self.default) if anew else self.default(self.net.parameters())

    def default(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The trainer's own optimizer."""
        optimizer: torch.optim.Optimizer = build("optimizer", self.task.config.optimizer, params=list(parameters))
        return optimizer


def best_actions(learner: Learner, observations: Tensor, acts: bool = True) -> Tensor:
    """Actions of the largest value, on the CPU; `acts`: a method watches training passes, so this must be none."""
    with learner.net.mode(training=False) if acts else contextlib.nullcontext():
        best: Tensor = learner.greedy(observations.to(learner.task.device, non_blocking=True))
    return best.cpu()


def targets_of(learner: Learner, batch: Batch) -> list[Callable[[], Tensor]]:
    """The targets (batch_size,) of each update, to be asked for when they are needed.

    The target network stands still between two steps. So a GPU takes all in one pass, and on a CPU the helper is ahead.
    """
    size, inputs = learner.task.config.batch_size, (batch.frames[:, 1:], batch.rewards, batch.terminated)
    if learner.helper is None:
        parts = learner.bootstrap(*inputs).clone().split(size)  # the next replay of a CUDA graph writes over its output
        return [part.detach for part in parts]
    split = zip(*(part.split(size) for part in inputs), strict=True)
    return [learner.helper.submit(learner.bootstrap, *part).result for part in split]


def on_device(learner: Learner, batch: Batch) -> Batch:
    """The transitions where the networks are, with the rewards that are learnt from."""
    batch = Batch(*(part.to(learner.task.device, non_blocking=True) for part in batch))
    return batch._replace(rewards=batch.rewards.sign()) if learner.task.config.reward_clip else batch


def td_batch(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Frames (B, stack + 1, ...), actions (B,) and targets (B,) on the device."""
    batch = on_device(learner, batch)
    return batch.frames, batch.actions, learner.bootstrap(batch.frames[:, 1:], batch.rewards, batch.terminated)
