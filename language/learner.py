"""All that changes while a language run trains, and its checkpoint."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fire_core.methods import Net
from harness.config.build import build
from harness.training import seeding
from harness.training.firing import load_trigger, trigger_state
from harness.training.loop import Progress
from harness.training.measure import Meter
from language.model import GPT
from language.sharded import shard_, to_shards
from language.speed import NextTokenLoss
from language.task import Task


@dataclass(kw_only=True)
class Learner(Progress):
    """All that changes while training, which is all that a checkpoint holds. Steps are optimizer steps."""

    forward: Any  # a module that gives the loss of a batch: compiled and replicated as asked for
    loss_sum: Tensor  # of this process's batches since the last row
    seen: int = 0
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)  # weights of phase 0: best, and at chosen iterations

    own_loss: dict[str, float] = field(default_factory=dict)  # of each task of a stream, when it ended: held-out tokens

    PLAIN = (*Progress.PROGRESS, "loss_sum", "seen", "kept", "own_loss")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """The network at its initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = copy.deepcopy(task.model).to(task.device)
        if task.sharded:
            shard_(model, task.device, task.group.size)
        else:
            task.group.broadcast_(list(model.parameters()))
        forward: Any = NextTokenLoss(model)
        if task.config.compile:
            forward = torch.compile(forward)
        if task.group.size > 1 and not task.sharded:
            forward = DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)
        return cls(
            net=Net.of({"model": model}, task.config.model.get("layout", "all")),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            phase=task.first_phase,
            forward=forward,
            trigger=copy.deepcopy(task.trigger),
            loss_sum=torch.zeros((), device=task.device),
        )

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        self.loss_sum, self.seen = torch.zeros_like(self.loss_sum), 0

    @property
    def model(self) -> GPT:
        """The network itself."""
        model = self.net.modules["model"]
        assert isinstance(model, GPT)
        return model

    def keep(self, name: str) -> None:
        """Keep the weights as they are now, for phase 1 to start from."""
        weights = {key: p.detach().clone() for key, p in self.model.named_parameters()}  # the tied matrix once
        self.kept[name] = {"weights": weights, "iteration": self.phase_step, "val/loss": self.row.get("val/loss")}

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
        """Go on from `state_dict`'s state, which is rank 0's."""
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        self.optimizer = new_optimizer(task, self, state["phase"])
        state = to_shards(state, self.model, self.optimizer)
        self.model.load_state_dict(state["model"])
        self.net.init["model"] = state["init"]
        self.optimizer.load_state_dict(state["optimizer"])
        seeding.set_rng_state(state["rng"])
        load_trigger(self.trigger, state.get("trigger"))
        for key in self.PLAIN:
            setattr(self, key, {} if key == "own_loss" and key not in state else state[key])
        if task.group.rank > 0:
            self.clear_sums()  # rank 0 saved the sum over all


def new_optimizer(task: Task, learner: Learner, index: int) -> torch.optim.Optimizer:
    """The optimizer of phase `index`; the method may choose it in phases in which it acts."""

    def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        chosen = list(parameters)
        groups: list[dict[str, Any]] = [{"params": [p for p in chosen if p.ndim > 1]}]
        if vectors := [p for p in chosen if p.ndim < 2]:
            groups.append({"params": vectors, "weight_decay": 0.0})
        optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=groups)
        return optimizer

    if task.method_acts_in(index):
        return learner.method.optimizer(learner.net, default)
    return default(learner.model.parameters())
