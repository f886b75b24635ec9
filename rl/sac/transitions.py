"""Replay of transitions: preallocated rings on the training device, several batches drawn at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rl.common.replay_store import Ring


class Batch(NamedTuple):
    """B transitions, one of each environment when they are added.

    Attributes:
        observation: (B, o), as the environment showed it.
        action: (B, a), in [-1, 1].
        reward: (B,).
        terminated: (B,), 1 or 0. A time limit is no termination: the value of what would have come still counts.
        next_observation: (B, o).
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    next_observation: Tensor


class Transitions(Ring):
    """The newest transitions of each environment; `rl.common.replay_store` writes them to disk.

    Args:
        capacity: how many are kept, of all environments together; the memory is allocated at once.
        envs: environments.
        observations: numbers in an observation.
        actions: numbers in an action.
        device: where they are stored, so that a batch is drawn without a transfer.
    """

    def __init__(
        self, capacity: int, envs: int, observations: int, actions: int, device: torch.device | str = "cpu"
    ) -> None:
        rows, self.device = capacity // envs, torch.device(device)
        shapes = Batch((observations,), (actions,), (), (), (observations,))  # type: ignore[arg-type]
        columns = {
            name: torch.zeros(envs, rows, *shape, device=device)
            for name, shape in zip(Batch._fields, shapes, strict=True)
        }
        super().__init__(columns, rows, envs)  # all write at the same time

    def __len__(self) -> int:
        return len(self.written) * min(self.written[0] - self.begins[0], self.rows)

    def add(self, batch: Batch) -> None:
        """Append a transition of each environment, (envs, ...), over its oldest one once the ring is full."""
        at = self.written[0] % self.rows
        for name, new in zip(Batch._fields, batch, strict=True):
            self.columns[name][:, at].copy_(new)
        self.written = [count + 1 for count in self.written]

    def sample(self, batches: int, size: int, generator: torch.Generator) -> Batch:
        """`batches` batches of `size` transitions each, uniform with replacement: (batches, size, ...).

        Args:
            batches: their number, one an update.
            size: of one.
            generator: on the CPU.
        """
        index = torch.randint(len(self), (batches, size), generator=generator).to(self.device, non_blocking=True)
        filled = min(self.written[0] - self.begins[0], self.rows)
        return self.gather(index // filled * self.rows + (index % filled + self.begins[0]) % self.rows)

    def gather(self, places: torch.Tensor) -> Batch:
        """The transitions at these places, (*places.shape, ...)."""
        return Batch(*(self.columns[name].flatten(0, 1)[places] for name in Batch._fields))

    def sample_part(self, size: int, generator: torch.Generator, part: tuple[float, float]) -> Batch:
        """Transitions (size, ...) of a part of the rows that are held, from the oldest (0) to the newest (1)."""
        filled = min(self.written[0] - self.begins[0], self.rows)
        first, end = self.written[0] - filled + int(filled * part[0]), self.written[0]
        end -= filled - math.ceil(filled * part[1])
        row = torch.randint(first, end, (size,), generator=generator)
        env = torch.randint(len(self.written), (size,), generator=generator)
        return self.gather((env * self.rows + row % self.rows).to(self.device))


def batch_at(batch: Batch, i: int) -> Batch:
    """The i-th of several batches."""
    return Batch(*(x[i] for x in batch))
