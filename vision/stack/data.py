"""A phase's batches for S runs at once, each in the order of its own seed."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vision.phase import pass_order
from vision.task import Task

WHOLE = 1 << 28  # bytes; images of a phase of all runs that take no more are normalised once and kept


class PhaseData:
    """The images and labels of a phase for all runs.

    Args:
        tasks: of the runs; their phases have as many training images each.
        index: of the phase.
    """

    def __init__(self, tasks: Sequence[Task], index: int) -> None:
        self.tasks, self.index = tasks, index
        self.phases = [task.phases[index] for task in tasks]
        self.images = tasks[0].data_of(index).train_images  # of the first run, for their number and size

    def batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (S, b, ...) and labels (S, b) of the phase's remaining steps, from step `start` on."""
        phase, size = self.phases[0], self.tasks[0].config.batch_size
        per_pass, number = phase.steps_per_pass(size), len(phase.train)
        there, S = len(self.images), len(self.tasks)
        everything = None
        if 4 * self.images.numel() * S <= WHOLE:
            everything = self._stacked([torch.arange(there, device=self.images.device)] * S)
            everything = everything[0].flatten(0, 1), everything[1].flatten(0, 1)
        first = there * torch.arange(S, device=self.images.device)[:, None]  # of each run's images among all
        for step in range(start, phase.steps(size)):
            passes, batch = divmod(step, per_pass)
            if batch == 0 or step == start:
                orders = [pass_order(task, self.index, passes) for task in self.tasks]
                if everything is not None:
                    place = (first + torch.stack(orders)).flatten()
                    whole = [part.index_select(0, place).unflatten(0, (S, number)) for part in everything]
            here = slice(batch * size, number if batch == per_pass - 1 else (batch + 1) * size)
            if everything is None:
                yield self._stacked([order[here] for order in orders])
            else:
                yield whole[0][:, here], whole[1][:, here]

    def _stacked(self, picks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        parts = [task.train_batch(self.index, pick) for task, pick in zip(self.tasks, picks, strict=True)]
        return torch.stack([images for images, _ in parts]), torch.stack([labels for _, labels in parts])
