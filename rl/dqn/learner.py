"""The state of a DQN run, its checkpoint, and the forward passes that need no gradient."""

import copy
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods import Net
from harness.config.build import build
from harness.training import seeding
from harness.training.measure import Meter
from rl.common.learner import AgentLearner
from rl.dqn.changing import Changing
from rl.dqn.episodes import Episodes
from rl.dqn.frames import Batch, FrameReplay
from rl.dqn.task import Task, make_env

log = logging.getLogger(__name__)
# Names of the sums that `train_step` adds to: the loss, and the mean value of the actions that were taken.
NAMES = ("train/loss", "train/value")


@dataclass(kw_only=True)
class Learner(AgentLearner):
    """The state of a DQN run.

    Attributes:
        replay: the transitions.
        env: the environments of training.
        exploring: generator of exploration.
        sampling: generator that draws transitions from the replay.
    """

    replay: FrameReplay
    env: Episodes
    exploring: torch.Generator
    sampling: torch.Generator

    GENERATORS = ("exploring", "sampling")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Return the state before the first step: networks at their initial weights, and the method."""
        config = task.config
        q = copy.deepcopy(task.model).to(task.device)
        net = Net.of({"q": q}, config.model.get("layout", "all"))
        net.targets["q"] = copy.deepcopy(q).eval()
        if config.compile != "off":
            torch.compiler.reset()
            for network in (q, net.targets["q"]):
                network.compile(mode=config.compile, dynamic=False)
        return cls(
            net=net,
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            trigger=copy.deepcopy(task.trigger),
            replay=task.new_replay(),
            env=make_env(config, config.num_envs, "train"),
            exploring=seeding.generator(config.seed, "exploration"),
            sampling=seeding.generator(config.seed, "replay"),
            sums=torch.zeros(len(NAMES), device=task.device),
        )

    @property
    def q(self) -> nn.Module:
        """The network that is trained and chooses actions."""
        return self.net.modules["q"]

    @property
    def target(self) -> nn.Module:
        """The network from which targets are computed."""
        return self.net.targets["q"]

    def begin_task(self) -> None:
        """Change to the environment of the phase's task; new episodes must be begun afterwards."""
        emulator = self.env.emulator
        assert isinstance(emulator, Changing)
        emulator.begin_task(self.phase)

    def close(self) -> None:
        """End the environments' threads."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the replay, which `save` writes."""
        return {**super().state_dict(), "env": self.env.state_dict()}

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay must be loaded."""
        super().load_state_dict(task, state)
        if task.is_stream:
            self.begin_task()
        if self.step < task.total_steps and not self.env.load_state_dict(state["env"]):
            log.warning("this version of the emulator does not repeat its episodes: new ones begin")
            self.replay.start(torch.arange(self.env.envs), self.env.begin())

    def renew_optimizers(self, task: Task) -> None:
        """Make a new optimizer for the phase, which the method may choose."""

        def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=list(parameters))
            return optimizer

        chooses = task.method_optimizes(self.phase)
        self.optimizers = {"q": self.method.optimizer(self.net, default) if chooses else default(self.net.parameters())}


@torch.no_grad()
def greedy_actions(task: Task, learner: Learner, observations: Tensor) -> Tensor:
    """Return the actions of the largest value, (envs,) on the CPU, for observations (envs, stack, ...).

    The pass is made in evaluation mode, in which dropout and batch norm change nothing between acting and evaluation;
    also, methods watch training passes and must not see it.
    """
    with learner.net.mode(training=False), task.autocast():
        actions: Tensor = learner.q(observations.to(task.device, non_blocking=True)).argmax(1)
    return actions.cpu()


def to_device(task: Task, batch: Batch) -> Batch:
    """Return transitions on the networks' device; `reward_clip` replaces rewards by their signs."""
    batch = Batch(*(column.to(task.device, non_blocking=True) for column in batch))
    return batch._replace(rewards=batch.rewards.sign()) if task.config.reward_clip else batch
