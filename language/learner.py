"""The state of a language run: everything that changes while it trains, and that a checkpoint holds."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fire_core.methods import Net
from harness.run.folder import Run
from harness.training import seeding
from harness.training.learner import LearnerBase
from harness.training.measure import Meter, check_finite
from language.model import GPT, NextTokenLoss
from language.task import Task


@dataclass(kw_only=True)
class Learner(LearnerBase):
    """The state of a language run. Steps are optimizer steps.

    Attributes:
        forward: a module that returns the loss of a batch, compiled and replicated as the options say.
        loss_sum: sum of the losses of this process's batches since the last row, a scalar.
        seen: number of these batches.
        kept: stored weights of phase 0, by "best" and by the iteration at which they were stored.
        scaler: scales float16's losses; switched off in other precisions.
        start_iteration: the iteration of phase 0 from whose weights phase 1 starts.
        own_loss: held-out loss of each task of a stream at the end of the task, by the task's name.
    """

    forward: Any
    loss_sum: Tensor
    seen: int = 0
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    scaler: torch.amp.GradScaler
    start_iteration: int = 0
    own_loss: dict[str, float] = field(default_factory=dict)

    PLAIN = (*LearnerBase.PLAIN, "loss_sum", "seen", "kept", "start_iteration", "own_loss")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Return the state before the first step: the network at its initial weights, and the method."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = copy.deepcopy(task.model).to(task.device)
        task.group.broadcast_(list(model.parameters()))
        forward: Any = NextTokenLoss(model)
        if task.config.compile != "off":
            forward = torch.compile(forward, mode=task.config.compile)
        if task.group.size > 1:
            forward = DistributedDataParallel(forward, gradient_as_bucket_view=True)
            forward.broadcast_buffers = False  # set here since torch 2.14 warns of the constructor's argument
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
        """Return the state for `Run.checkpoint`."""
        return super().state_dict() | {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, task: Any, state: dict[str, Any]) -> None:
        """Restore what `state_dict` of a learner of this task returned."""
        super().load_state_dict(task, state)
        if task.group.size > 1 and task.device.type == "cuda" and "cuda" in state["rng"]:
            # Rank 0 has saved the generators of all GPUs as it sees them: those of other ranks have drawn nothing.
            torch.cuda.set_rng_state(state["rng"]["cuda"][0].cpu(), task.device)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])

    def clear_sums(self) -> None:
        """Set the sums to zero for the next row."""
        self.loss_sum, self.seen = torch.zeros_like(self.loss_sum), 0

    def save(self, task: Task, run: Run | None) -> None:
        """Write a checkpoint with the sums of all processes; all ranks call it, and the one that has `run` writes.

        Raises:
            Diverged: a loss or weight is not finite.
        """
        rank_sums = torch.zeros(task.group.size, dtype=self.loss_sum.dtype, device=self.loss_sum.device)  # (ranks,)
        rank_sums[task.group.rank] = self.loss_sum
        task.group.sum_(rank_sums)  # exact, as the other ranks add 0 to each rank's own sum
        check_finite(self.step, rank_sums, *self.model.parameters())  # of all ranks, so that all stop
        sums_of_all = {"loss_sum": rank_sums.sum(), "seen": self.seen * task.group.size, "rank_sums": rank_sums}
        if run is not None:
            run.checkpoint(self.step, self.state_dict() | sums_of_all)

    @property
    def model(self) -> GPT:
        """The network that is trained, neither compiled nor replicated."""
        model = self.net.modules["model"]
        assert isinstance(model, GPT)
        return model

    def keep(self, name: str) -> None:
        """Store a copy of the present weights under a name, for phase 1 to start from."""
        weights = {key: p.detach().clone() for key, p in self.model.named_parameters()}  # has the tied matrix once
        self.kept[name] = {"weights": weights, "iteration": self.phase_step, "val/loss": self.row.get("val/loss")}

    @staticmethod
    def parameter_groups(parameters: list[nn.Parameter]) -> list[Any]:
        """Return the optimizer's groups: matrices and embeddings with its weight decay, biases and norms without."""
        groups: list[dict[str, Any]] = [{"params": [p for p in parameters if p.ndim > 1]}]
        if vectors := [p for p in parameters if p.ndim < 2]:
            groups.append({"params": vectors, "weight_decay": 0.0})
        return groups
