"""Replay of single frames: each is kept once and observations are stacked when they are sampled.

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
    """The rings.

    Args:
        capacity: rows of all environments together. An episode of T transitions takes T + 1 rows.
        envs: number of environments, which divides the capacity or leaves a few rows unused.
        shape: of a frame.
        dtype: of a frame.
        stack: frames in an observation.
        device: where frames are kept. Ages stay on the CPU, so that sampling never waits for a GPU; rows are drawn by
            numpy, whose calls take less time than torch's.
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
        self._age = torch.zeros(envs, dtype=torch.int32)  # of the newest rows
        self._every = torch.arange(envs)
        self._back = np.arange(stack, -1, -1)  # stack, ..., 1, 0 rows back

    @staticmethod
    def bytes_each(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> int:
        """Memory of a row: the frame, action 4, reward 4, terminated 1, age 4."""
        return math.prod(shape) * dtype.itemsize + 13

    def start(self, which: Tensor, frames: Tensor) -> None:
        """The first frames (k, *shape) of new episodes of the environments `which`, (k,)."""
        self._age[which] = 0
        at = self._slots(which)
        self.columns["frame"][which, at] = frames.to(self.columns["frame"].device)
        self.columns["age"][which, at] = 0
        self._count(which)

    def append(self, frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor) -> None:
        """Append the next frame of every environment, (envs, *shape), and what led to it, (envs,) each."""
        at, device = self._slots(self._every), self.columns["frame"].device
        self._age += 1
        values = {"frame": frames, "action": actions, "reward": rewards, "terminated": terminated}
        for name, value in values.items():
            column = self.columns[name]
            column[self._every, at] = value.to(device, column.dtype)
        self.columns["age"][self._every, at] = self._age
        self._count(self._every)

    def _slots(self, which: Tensor) -> Tensor:
        return torch.tensor(self.written)[which] % self.rows

    def _count(self, which: Tensor) -> None:
        for env in which.tolist():
            self.written[env] += 1

    def draw(
        self, size: int, generator: torch.Generator, part: tuple[float, float] = (0.0, 1.0)
    ) -> tuple[Tensor, Tensor]:
        """Environments and row numbers (counted from the start of training) of uniformly drawn transitions, (size,).

        `part`: of the rows that are held, from the oldest (0) to the newest (1).
        """
        written = np.array(self.written)
        # In a full ring the oldest rows lack frames of their stacks.
        first = np.where(written > self.rows, written - self.rows + self.stack, 0)
        first = np.maximum(first, self.begins)
        if part != (0.0, 1.0):
            span = torch.from_numpy(written - first)  # times a fraction in float32
            written = first + (span * part[1]).ceil().long().numpy()
            first = first + (span * part[0]).long().numpy()
            held = zip(self.columns["age"], first, written, strict=True)
            if not any(age[torch.arange(a, b) % self.rows].any() for age, a, b in held):
                return self.draw(size, generator)  # it has no row but first frames: of all that is held
        ends = (written - first).cumsum()
        to_row = first - ends + (written - first)  # what makes a number of the draw a row of its environment
        ages, total = self.columns["age"].numpy(), int(ends[-1])

        def look(u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            env = ends.searchsorted(u, side="right")
            row = u + to_row[env]
            return env, row, ages[env, row % self.rows] == 0

        u = torch.randint(total, (size,), generator=generator).numpy()
        env, row, bad = look(u)
        while bad.any():  # an episode's first frame is no transition
            u[bad] = torch.randint(total, (int(bad.sum()),), generator=generator).numpy()
            env, row, bad = look(u)
        return torch.from_numpy(env), torch.from_numpy(row)

    def gather(self, env: Tensor, row: Tensor) -> Batch:
        """The transitions of these rows."""
        rows = (row.numpy()[:, None] - self._back) % self.rows + env.numpy()[:, None] * self.rows  # (B, stack + 1)
        frame = self.columns["frame"].view(self.envs * self.rows, *self.shape)
        places = torch.from_numpy(rows).to(frame.device, non_blocking=True)
        frames = frame.index_select(0, places.flatten()).view(*rows.shape, *self.shape)
        before = self._back > self.columns["age"].numpy().reshape(-1)[rows[:, -1:]]  # of the episode's first frame
        if before.any():
            frames[torch.from_numpy(before).to(frame.device)] = 0
        columns = (self.columns[name].view(-1) for name in ("action", "reward", "terminated"))
        action, reward, terminated = (column.index_select(0, places[:, -1]) for column in columns)
        return Batch(frames, action.long(), reward, terminated)

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """`size` uniformly drawn transitions, with replacement."""
        return self.gather(*self.draw(size, generator))

    def loaded(self) -> None:
        """Called after the columns were filled."""
        newest = (torch.tensor(self.written) - 1).clamp(min=0) % self.rows
        self._age = self.columns["age"][self._every, newest].clone()
