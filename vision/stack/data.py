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
        pixels = tasks[0].data_of(index).train_images[:0].flatten(1).shape[1]
        self.bytes_each = 4 * pixels * len(tasks)  # of an image for each run

    def batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (S, b, ...) and labels (S, b) of the phase's remaining steps, from step `start` on."""
        phase, size = self.phases[0], self.tasks[0].config.batch_size
        per_pass, number = phase.steps_per_pass(size), len(phase.train)
        small = self.bytes_each * number <= WHOLE
        for step in range(start, phase.steps(size)):
            passes, batch = divmod(step, per_pass)
            if batch == 0 or step == start:
                orders = [pass_order(task, self.index, passes) for task in self.tasks]
                whole = self._stacked(orders) if small else None
            here = slice(batch * size, number if batch == per_pass - 1 else (batch + 1) * size)
            if whole is None:
                yield self._stacked([order[here] for order in orders])
            else:
                yield whole[0][:, here], whole[1][:, here]

    def _stacked(self, picks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        parts = [task.train_batch(self.index, pick) for task, pick in zip(self.tasks, picks, strict=True)]
        return torch.stack([images for images, _ in parts]), torch.stack([labels for _, labels in parts])
