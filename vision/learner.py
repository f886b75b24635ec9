"""All that changes while a vision run trains, and its checkpoint."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods import Net
from harness.config.build import build
from harness.training import seeding
from harness.training.firing import load_trigger, trigger_state
from harness.training.loop import Progress
from harness.training.measure import Meter
from vision.task import Task


@dataclass(kw_only=True)
class Learner(Progress):
    """All that changes while training, which is all that a checkpoint holds. Steps are optimizer steps."""

    forward: nn.Module  # the network as it trains: compiled if asked for
    loss_sum: Tensor  # of the samples since the last row, as the next two
    correct: Tensor
    seen: int = 0

    PLAIN = (*Progress.PROGRESS, "loss_sum", "correct", "seen")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """The network at its initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = copy.deepcopy(task.model).to(task.device).to(memory_format=task.memory_format)
        return cls(
            net=Net.of({"model": model}, task.config.model.get("layout", "all")),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            forward=model,
            trigger=copy.deepcopy(task.trigger),
            loss_sum=torch.zeros((), device=task.device),
            correct=torch.zeros((), device=task.device),
        )

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        self.loss_sum, self.correct, self.seen = torch.zeros_like(self.loss_sum), torch.zeros_like(self.correct), 0

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.net.modules["model"]

    def state_dict(self) -> dict[str, Any]:
        """For `Run.checkpoint`."""
        assert self.optimizer is not None
        return {
            "model": self.model.state_dict(),
            "init": self.net.init["model"],
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": seeding.rng_state(),
            "trigger": trigger_state(self.trigger),
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Go on from `state_dict`'s state."""
        self.net.init["model"] = state["init"]
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        self.model.load_state_dict(state["model"])
        self.optimizer = new_optimizer(task, self, state["phase"])
        self.optimizer.load_state_dict(state["optimizer"])
        seeding.set_rng_state(state["rng"])
        load_trigger(self.trigger, state.get("trigger"))
        for key in self.PLAIN:
            setattr(self, key, state[key])


def new_optimizer(task: Task, learner: Learner, index: int) -> torch.optim.Optimizer:
    """The optimizer of phase `index`; the method may choose it in phases in which it acts."""

    def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=list(parameters))
        return optimizer

    if task.method_acts_in(index):
        return learner.method.optimizer(learner.net, default)
    return default(learner.model.parameters())
