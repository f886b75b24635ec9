"""Replay of transitions: preallocated rings on the training device, several batches drawn at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rl.common.replay_store import Ring


class Batch(NamedTuple):
    """B transitions; where they are added to the replay, one of each environment.

    Attributes:
        observation: (B, o), not normalised.
        action: (B, a), in [-1, 1].
        reward: (B,), summed over the repeats of the action.
        terminated: (B,), 1 or 0. A time limit is no termination: the value of the next observation still counts.
        next_observation: (B, o), not normalised.
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    next_observation: Tensor


class Transitions(Ring):
    """The newest transitions of each environment; `rl.common.replay_store` writes them to disk.

    Args:
        capacity: most transitions, of all environments together; the memory is allocated at once.
        envs: number of environments.
        observations: length of an observation.
        actions: length of an action.
        device: where the transitions are stored: the device of training, so that batches need no transfer.
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
        return len(self.written) * min(self.written[0] - self.first_sampled[0], self.rows)

    def add(self, batch: Batch) -> None:
        """Append a transition of each environment, (envs, ...), over its oldest one once the ring is full."""
        row = self.written[0] % self.rows
        for name, new in zip(Batch._fields, batch, strict=True):
            self.columns[name][:, row].copy_(new)
        self.written = [count + 1 for count in self.written]

    def sample(self, batches: int, size: int, generator: torch.Generator) -> Batch:
        """Draw batches of transitions, (batches, size, ...), uniformly with replacement.

        Args:
            batches: number of batches, one for each update.
            size: transitions per batch.
            generator: a generator on the CPU.
        """
        index = torch.randint(len(self), (batches, size), generator=generator).to(self.device, non_blocking=True)
        filled = min(self.written[0] - self.first_sampled[0], self.rows)
        return self.gather(index // filled * self.rows + (index % filled + self.first_sampled[0]) % self.rows)

    def gather(self, index: torch.Tensor) -> Batch:
        """Return the transitions (*index.shape, ...) at `index`, where row r of environment e is e * rows + r."""
        return Batch(*(self.columns[name].flatten(0, 1)[index] for name in Batch._fields))

    def sample_part(self, size: int, generator: torch.Generator, ages: tuple[float, float]) -> Batch:
        """Draw transitions (size, ...) of a range of ages, as fractions from the oldest (0) to the newest (1)."""
        filled = min(self.written[0] - self.first_sampled[0], self.rows)
        oldest = self.written[0] - filled
        first, end = oldest + int(filled * ages[0]), oldest + math.ceil(filled * ages[1])
        row = torch.randint(first, end, (size,), generator=generator)
        env = torch.randint(len(self.written), (size,), generator=generator)
        return self.gather((env * self.rows + row % self.rows).to(self.device))


def batch_at(batch: Batch, i: int) -> Batch:
    """Return the batch `i`, (size, ...), of several, (batches, size, ...)."""
    return Batch(*(x[i] for x in batch))
