"""The state of a vision run: everything that changes while it trains, and that a checkpoint holds."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fire_core.methods import Net
from fire_core.methods.protocol import tensors_of
from harness.run.folder import Run
from harness.training import seeding
from harness.training.learner import LearnerBase
from harness.training.measure import Meter, check_finite
from vision.task import Task


@dataclass(kw_only=True)
class Learner(LearnerBase):
    """The state of a vision run. Steps are optimizer steps.

    Attributes:
        forward: the network for training passes: compiled if `compile=` asks for it.
        loss_sum: sum of the losses of all samples since the last row, a scalar.
        correct: how many of these samples were classified correctly, a scalar.
        seen: number of these samples.
    """

    forward: nn.Module
    loss_sum: Tensor
    correct: Tensor
    seen: int = 0

    PLAIN = (*LearnerBase.PLAIN, "loss_sum", "correct", "seen")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Return the state before the first step: the network at its initial weights, and the method."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = copy.deepcopy(task.model).to(task.device).to(memory_format=task.memory_format)
        skips_phase = task.config.skip_first_phase
        return cls(
            phase=1 if skips_phase else 0,
            step=task.phases[0].steps(task.config.batch_size) if skips_phase else 0,
            net=Net.of({"model": model}, task.config.model.get("layout", "all")),
            method=copy.deepcopy(task.method),
            method_meter=Meter(task.device),
            forward=model,
            trigger=copy.deepcopy(task.trigger),
            loss_sum=torch.zeros((), device=task.device),
            correct=torch.zeros((), device=task.device),
        )

    def clear_sums(self) -> None:
        """Set the sums to zero for the next row, in the same tensors, because a CUDA graph adds to these."""
        self.loss_sum.zero_()
        self.correct.zero_()
        self.seen = 0

    def save(self, run: Run) -> None:
        """Write a checkpoint.

        Raises:
            Diverged: a loss or weight is not finite.
        """
        check_finite(self.step, self.loss_sum, *self.weights_to_check())
        run.checkpoint(self.step, self.state_dict())

    def weights_to_check(self) -> Iterator[Tensor]:
        """Yield parameters and saved buffers that are finite in a run that has not diverged.

        A buffer that was not finite from the start, such as a mask of -inf, is not one of them.
        """
        initial, buffers = self.net.init["model"], dict(self.model.named_buffers())
        for name, tensor in tensors_of(self.model).items():
            if name not in buffers or name not in initial or torch.isfinite(initial[name]).all():
                yield tensor

    @property
    def model(self) -> nn.Module:
        """The network that is trained, not compiled."""
        return self.net.modules["model"]
