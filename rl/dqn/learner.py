"""All that changes while DQN trains, its checkpoint, and the passes through its networks."""

import contextlib
import copy
import functools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from rl.dqn.update import chosen, td_target

log = logging.getLogger(__name__)


@dataclass
class Passes:
    """The three passes through the networks, compiled if asked for.

    Attributes:
        greedy: observations (envs, stack, ...) -> actions of the largest value (envs,).
        bootstrap: next observations, rewards, terminated -> targets (B,).
        values: observations, actions -> values of these actions (B,), with their gradient.
    """

    greedy: Callable[[Tensor], Tensor]
    bootstrap: Callable[[Tensor, Tensor, Tensor], Tensor]
    values: Callable[[Tensor, Tensor], Tensor]


@dataclass(kw_only=True)
class Learner(AgentLearner):
    """All that changes while DQN trains."""

    replay: FrameReplay
    env: Episodes
    exploring: torch.Generator
    sampling: torch.Generator
    passes: Passes
    helper: ThreadPoolExecutor | None  # a second core, which computes the targets of the next updates
    loss_sum: Tensor  # over the updates since the last row, as the next two
    value_sum: Tensor  # of the mean value of the actions that were taken
    updates_since: int = 0
    evaluated: dict[str, float] = field(default_factory=dict)  # the last evaluation

    PLAIN = (*AgentLearner.PLAIN, "loss_sum", "value_sum", "updates_since", "evaluated")
    GENERATORS = ("exploring", "sampling")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Networks at their initial weights and the method, before the first step."""
        config = task.config
        q = copy.deepcopy(task.model).to(task.device)
        net = Net.of({"q": q}, config.model["layout"])
        net.targets["q"] = copy.deepcopy(q)
        alone = task.device.type != "cpu" or config.compile != "off"
        return cls(
            net=net,
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            trigger=copy.deepcopy(task.trigger),
            replay=task.new_replay(),
            env=make_env(config, config.num_envs, "train"),
            exploring=seeding.generator(config.seed, "exploration"),
            sampling=seeding.generator(config.seed, "replay"),
            passes=build_passes(task, net),
            helper=None if alone else ThreadPoolExecutor(1, thread_name_prefix="targets"),
            loss_sum=torch.zeros((), device=task.device),
            value_sum=torch.zeros((), device=task.device),
        )

    @property
    def q(self) -> nn.Module:
        """The network that is trained and acts."""
        return self.net.modules["q"]

    @property
    def target(self) -> nn.Module:
        """The network that the targets come from."""
        return self.net.targets["q"]

    def begin_task(self) -> None:
        """Be in the environment of the phase; new episodes must begin."""
        emulator = self.env.emulator
        assert isinstance(emulator, Changing)
        emulator.begin_task(self.phase)

    def close(self) -> None:
        """End the threads."""
        self.env.close()
        if self.helper is not None:
            self.helper.shutdown()

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        self.loss_sum, self.value_sum = torch.zeros_like(self.loss_sum), torch.zeros_like(self.value_sum)
        self.updates_since, self.returns = 0, []

    def state_dict(self) -> dict[str, Any]:
        """All but the replay, see `rl.common.checkpoint`."""
        return {**super().state_dict(), "env": self.env.state_dict()}

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the replay must be loaded."""
        super().load_state_dict(task, state)
        if task.benchmark is not None:
            self.begin_task()
        if self.step < task.total_steps and not self.env.load_state_dict(state["env"]):
            log.warning("this version of the emulator does not repeat its episodes: new ones begin")
            self.replay.start(torch.arange(self.env.envs), self.env.begin())

    def renew_optimizers(self, task: Task) -> None:
        """The learner's phase has a new optimizer, which the method may choose."""

        def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=list(parameters))
            return optimizer

        chooses = task.method_optimizes(self.phase)
        self.optimizers = {"q": self.method.optimizer(self.net, default) if chooses else default(self.net.parameters())}


def build_passes(task: Task, net: Net) -> Passes:
    """The passes through these networks; rebuild them when a method has changed modules."""
    gamma = task.config.gamma

    def greedy(observations: Tensor) -> Tensor:
        with torch.no_grad(), task.autocast():
            best: Tensor = net.modules["q"](observations).argmax(1)
            return best

    def bootstrap(observations: Tensor, rewards: Tensor, terminated: Tensor) -> Tensor:
        with task.autocast():
            return td_target(net.targets["q"], observations, rewards, terminated, gamma)

    def values(observations: Tensor, actions: Tensor) -> Tensor:
        with task.autocast():
            return chosen(net.modules["q"], observations, actions)

    if task.config.compile == "off":
        return Passes(greedy, bootstrap, values)
    torch.compiler.reset()
    wrap: Any = functools.partial(torch.compile, mode=task.config.compile, dynamic=False)
    return Passes(wrap(greedy), wrap(bootstrap), wrap(values))


def best_actions(task: Task, learner: Learner, observations: Tensor, acts: bool = True) -> Tensor:
    """Actions of the largest value, on the CPU; `acts`: a method watches training passes, so this must be none."""
    with learner.net.mode(training=False) if acts else contextlib.nullcontext():
        return learner.passes.greedy(observations.to(task.device, non_blocking=True)).cpu()


def targets_of(task: Task, learner: Learner, batch: Batch) -> list[Callable[[], Tensor]]:
    """The targets (batch_size,) of each update, each as a function to call when it is needed.

    The target network does not change between two steps. So a GPU computes all in one pass, and on a CPU the helper
    computes them ahead; it adds in the same order as the first core would.
    """
    size, inputs = task.config.batch_size, (batch.frames[:, 1:], batch.rewards, batch.terminated)
    if learner.helper is None:
        # The next replay of a CUDA graph writes over its output.
        return [part.detach for part in torch.split(learner.passes.bootstrap(*inputs).clone(), size)]
    if len(batch.actions) == size:  # nothing is trained meanwhile, so there is nothing to be ahead of
        return [learner.passes.bootstrap(*inputs).detach]
    parts = zip(*(torch.split(part, size) for part in inputs), strict=True)
    return [learner.helper.submit(learner.passes.bootstrap, *part).result for part in parts]


def on_device(task: Task, batch: Batch) -> Batch:
    """The transitions on the networks' device, with rewards clipped if that is asked for."""
    batch = Batch(*(part.to(task.device, non_blocking=True) for part in batch))
    return batch._replace(rewards=batch.rewards.sign()) if task.config.reward_clip else batch
