"""All that changes while a language run trains, and its checkpoint."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fire_core.methods import Net
from harness.training import seeding
from harness.training.learner import LearnerBase
from harness.training.measure import Meter
from language.model import GPT, NextTokenLoss
from language.task import Task


@dataclass(kw_only=True)
class Learner(LearnerBase):
    """All that changes while a language run trains. Steps are optimizer steps."""

    forward: Any  # a module that gives the loss of a batch: compiled and replicated as asked for
    loss_sum: Tensor  # of this process's batches since the last row
    seen: int = 0
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)  # weights of phase 0: best, and at chosen iterations
    scaler: torch.amp.GradScaler  # of float16's losses; switched off in other precisions
    start_iteration: int = 0  # of phase 0, whose weights phase 1 starts from
    own_loss: dict[str, float] = field(default_factory=dict)  # of each task of a stream, when it ended: held-out tokens

    PLAIN = (*LearnerBase.PLAIN, "loss_sum", "seen", "kept", "start_iteration", "own_loss")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """The network at its initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = copy.deepcopy(task.model).to(task.device)
        task.group.broadcast_(list(model.parameters()))
        forward: Any = NextTokenLoss(model)
        if task.config.compile != "off":
            forward = torch.compile(forward, mode=task.config.compile)
        if task.group.size > 1:
            forward = DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)
        return cls(
            net=Net.of({"model": model}, task.config.model.get("layout", "all")),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            phase=task.first_phase,
            forward=forward,
            trigger=copy.deepcopy(task.trigger),
            loss_sum=torch.zeros((), device=task.device),
            scaler=torch.amp.GradScaler(task.device.type, enabled=task.config.precision == "float16"),
        )

    def state_dict(self) -> dict[str, Any]:
        """For `Run.checkpoint`."""
        return super().state_dict() | {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, task: Any, state: dict[str, Any]) -> None:
        """Go on from the state of a learner of this task."""
        super().load_state_dict(task, state)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])

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

    @staticmethod
    def parameter_groups(parameters: list[nn.Parameter]) -> list[Any]:
        """Matrices, the embeddings among them, have the optimizer's weight decay; biases and norms have none."""
        groups: list[dict[str, Any]] = [{"params": [p for p in parameters if p.ndim > 1]}]
        if vectors := [p for p in parameters if p.ndim < 2]:
            groups.append({"params": vectors, "weight_decay": 0.0})
        return groups
