"""Replay of transitions: preallocated rings on the training device, several batches drawn at once."""

from typing import Any

import torch
from torch import Tensor

from rl.sac_update import Batch


class Transitions:
    """The newest `capacity` transitions.

    Args:
        capacity: how many are kept; the memory is taken at once.
        observations: numbers in an observation.
        actions: numbers in an action.
        device: where they live, so that a batch is drawn without a transfer.
    """

    def __init__(self, capacity: int, observations: int, actions: int, device: torch.device | str = "cpu") -> None:
        def ring(*shape: int) -> Tensor:
            return torch.zeros(capacity, *shape, device=device)

        self.capacity, self.device = capacity, torch.device(device)
        self.rings = Batch(ring(observations), ring(actions), ring(), ring(), ring(observations))
        self.added = 0  # since the start of the run

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, batch: Batch) -> None:
        """Append transitions, (k, ...) each with k <= capacity, over the oldest once the ring is full."""
        count = len(batch.reward)
        start = self.added % self.capacity
        first = min(count, self.capacity - start)
        for ring, new in zip(self.rings, batch, strict=True):
            ring[start : start + first].copy_(new[:first])
            if first < count:
                ring[: count - first].copy_(new[first:])
        self.added += count

    def sample(self, batches: int, size: int, generator: torch.Generator) -> Batch:
        """`batches` batches of `size` transitions each, uniform with replacement: (batches, size, ...).

        Args:
            batches: how many updates they are for.
            size: of one.
            generator: on the CPU.
        """
        index = torch.randint(len(self), (batches, size), generator=generator).to(self.device, non_blocking=True)
        return Batch(*(ring[index] for ring in self.rings))

    def state_dict(self) -> dict[str, Any]:
        """The filled part, as tensors on the CPU."""
        kept = {name: ring[: len(self)].cpu() for name, ring in zip(Batch._fields, self.rings, strict=True)}
        return {"added": self.added, **{name: value.clone() for name, value in kept.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave.

        Raises:
            ValueError: it holds more transitions than there is room for.
        """
        self.added = state["added"]
        if len(state["reward"]) != len(self):
            raise ValueError(f"{len(state['reward'])} transitions were saved, {len(self)} fit into capacity")
        for name, ring in zip(Batch._fields, self.rings, strict=True):
            ring[: len(self)].copy_(state[name])
