"""All that changes while a vision run trains, and its checkpoint."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fire_core.methods import Net
from harness.training import seeding
from harness.training.learner import LearnerBase
from harness.training.measure import Meter
from vision.task import Task


@dataclass(kw_only=True)
class Learner(LearnerBase):
    """All that changes while a vision run trains. Steps are optimizer steps."""

    forward: nn.Module  # the network as it trains: compiled if asked for
    loss_sum: Tensor  # of the samples since the last row, as the next two
    correct: Tensor
    seen: int = 0

    PLAIN = (*LearnerBase.PLAIN, "loss_sum", "correct", "seen")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """The network at its initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = copy.deepcopy(task.model).to(task.device).to(memory_format=task.memory_format)
        skips = task.config.skip_first_phase
        return cls(
            phase=1 if skips else 0,
            step=task.phases[0].steps(task.config.batch_size) if skips else 0,
            net=Net.of({"model": model}, task.config.model.get("layout", "all")),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            forward=model,
            trigger=copy.deepcopy(task.trigger),
            loss_sum=torch.zeros((), device=task.device),
            correct=torch.zeros((), device=task.device),
        )

    def clear_sums(self) -> None:
        """Start counting for the next row, in the same tensors: a CUDA graph adds to them."""
        self.loss_sum.zero_()
        self.correct.zero_()
        self.seen = 0

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.net.modules["model"]
