"""A replay of single frames: each frame is stored once, and observations are stacked when they are sampled.

One ring of rows for each environment, to which rows are only ever appended:

    row            0      1      2      3      4   |  5      6
    frame          f0     f1     f2     f3     f4  |  g0     g1        what the environment showed
    age            0      1      2      3      4   |  0      1         rows since the episode's first
    action, reward, terminated: what led to the row's frame (nothing, where age is 0)

So row r with age >= 1 is the transition from the stack that ends with row r-1 to the stack that ends with row r, and no
transition crosses from one episode to the next. Frames before an episode's first are zero, as in ALE.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl.common.replay_store import Ring


class Batch(NamedTuple):
    """Sampled transitions.

    Attributes:
        frames: (B, stack + 1, *shape); `frames[:, :-1]` is the observation and `frames[:, 1:]` the next one.
        actions: (B,) int64.
        rewards: (B,) float32, not clipped.
        terminated: (B,) bool; False where a time limit ended the episode.
    """

    frames: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor


class FrameReplay(Ring):
    """The rings of frames, actions, rewards and ages, from which transitions are sampled.

    Args:
        capacity: rows of all environments together. An episode of T transitions takes T + 1 rows.
        envs: number of environments; if it does not divide the capacity a few rows are not used.
        shape: shape of a frame.
        dtype: dtype of a frame.
        stack: number of frames in an observation.
        device: device on which frames are stored. Ages stay on the CPU, so that sampling never waits for a GPU. Rows
            are drawn by NumPy, whose calls take less time than torch's.
    """

    def __init__(
        self,
        capacity: int,
        envs: int,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        stack: int = 4,
        device: torch.device | str = "cpu",
    ) -> None:
        rows, self.envs, self.stack, self.shape = capacity // envs, envs, stack, tuple(shape)
        size = (envs, rows)
        columns = {
            "frame": torch.zeros(*size, *shape, dtype=dtype, device=device),
            "action": torch.zeros(size, dtype=torch.int32, device=device),
            "reward": torch.zeros(size, device=device),
            "terminated": torch.zeros(size, dtype=torch.bool, device=device),
            "age": torch.zeros(size, dtype=torch.int32),
        }
        super().__init__(columns, rows, envs)
        self._age = torch.zeros(envs, dtype=torch.int32)  # age of each environment's newest row
        self._all_envs = torch.arange(envs)
        self._rows_back = np.arange(stack, -1, -1)  # stack, ..., 1, 0: how many rows before a transition's own

    @staticmethod
    def bytes_each(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> int:
        """Return the bytes of a row: the frame's, and 4 for action, 4 for reward, 1 for terminated, 4 for age."""
        return math.prod(shape) * dtype.itemsize + 13

    def start(self, which: Tensor, frames: Tensor) -> None:
        """Append the first frames (k, *shape) of new episodes of the environments `which`, (k,)."""
        self._age[which] = 0
        slots = self._slots(which)
        self.columns["frame"][which, slots] = frames.to(self.columns["frame"].device)
        self.columns["age"][which, slots] = 0
        self._count(which)

    def append(self, frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor) -> None:
        """Append the next frame of every environment, (envs, *shape), and what led to it, (envs,) each."""
        slots, device = self._slots(self._all_envs), self.columns["frame"].device
        self._age += 1
        values = {"frame": frames, "action": actions, "reward": rewards, "terminated": terminated}
        for name, value in values.items():
            column = self.columns[name]
            column[self._all_envs, slots] = value.to(device, column.dtype)
        self.columns["age"][self._all_envs, slots] = self._age
        self._count(self._all_envs)

    def _slots(self, which: Tensor) -> Tensor:
        """Return the positions in the ring of the next rows of environments (k,), (k,)."""
        return torch.tensor(self.written)[which] % self.rows

    def _count(self, which: Tensor) -> None:
        """Count a row more for each of these environments, (k,)."""
        for env in which.tolist():
            self.written[env] += 1

    def draw(
        self, size: int, generator: torch.Generator, part: tuple[float, float] = (0.0, 1.0)
    ) -> tuple[Tensor, Tensor]:
        """Draw transitions uniformly, with replacement.

        Args:
            size: number of transitions.
            generator: a CPU generator.
            part: the part of the stored rows from which to draw, from the oldest (0) to the newest (1).

        Returns:
            Environments and row numbers (counted from the start of training) of the transitions, (size,) each.
        """
        stop = np.array(self.written)
        # In a full ring the oldest rows lack frames of their stacks.
        start = np.where(stop > self.rows, stop - self.rows + self.stack, 0)
        start = np.maximum(start, self.first_sampled)
        if part != (0.0, 1.0):
            length = torch.from_numpy(stop - start)  # a torch tensor, whose product with a fraction is in float32
            stop = start + (length * part[1]).ceil().long().numpy()
            start = start + (length * part[0]).long().numpy()
            ranges = zip(self.columns["age"], start, stop, strict=True)
            if not any(age[torch.arange(first, end) % self.rows].any() for age, first, end in ranges):
                return self.draw(size, generator)  # this part has first frames only: draw from all rows
        # The rows of all environments are numbered one after the other: environment i has the numbers from
        # ends[i] - (stop[i] - start[i]) to ends[i].
        ends = (stop - start).cumsum()
        number_to_row = start - ends + (stop - start)
        ages, total = self.columns["age"].numpy(), int(ends[-1])

        def locate(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            env = ends.searchsorted(numbers, side="right")
            row = numbers + number_to_row[env]
            is_first_frame = ages[env, row % self.rows] == 0
            return env, row, is_first_frame

        numbers = torch.randint(total, (size,), generator=generator).numpy()
        env, row, is_first_frame = locate(numbers)
        while is_first_frame.any():  # an episode's first frame is no transition: draw again
            count = int(is_first_frame.sum())
            numbers[is_first_frame] = torch.randint(total, (count,), generator=generator).numpy()
            env, row, is_first_frame = locate(numbers)
        return torch.from_numpy(env), torch.from_numpy(row)

    def gather(self, env: Tensor, row: Tensor) -> Batch:
        """Return the transitions of these environments and row numbers, (B,) each."""
        slots = (row.numpy()[:, None] - self._rows_back) % self.rows + env.numpy()[:, None] * self.rows
        all_frames = self.columns["frame"].view(self.envs * self.rows, *self.shape)
        index = torch.from_numpy(slots).to(all_frames.device, non_blocking=True)  # (B, stack + 1)
        frames = all_frames.index_select(0, index.flatten()).view(*slots.shape, *self.shape)
        before_episode = self._rows_back > self.columns["age"].numpy().reshape(-1)[slots[:, -1:]]  # (B, stack + 1)
        if before_episode.any():
            frames[torch.from_numpy(before_episode).to(all_frames.device)] = 0
        columns = (self.columns[name].view(-1) for name in ("action", "reward", "terminated"))
        action, reward, terminated = (column.index_select(0, index[:, -1]) for column in columns)
        return Batch(frames, action.long(), reward, terminated)

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """Return `size` uniformly drawn transitions, with replacement."""
        return self.gather(*self.draw(size, generator))

    def after_load(self) -> None:
        """Take the newest rows' ages from the columns, which have just been filled."""
        newest = (torch.tensor(self.written) - 1).clamp(min=0) % self.rows
        self._age = self.columns["age"][self._all_envs, newest].clone()
