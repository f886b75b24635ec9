"""The replays of S runs in common tensors: rows are appended and transitions drawn for all runs in a few calls."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl.dqn.frames import FrameReplay


class StackedReplay:
    """Takes the columns of replays into common arrays; each replay's own become views of them.

    Each run draws from its own generator, in the order in which `FrameReplay.draw` would.

    Args:
        replays: of one environment each, on the CPU, of observations that are one frame (`fits`).
    """

    def __init__(self, replays: Sequence[FrameReplay]) -> None:
        self.replays, self.rows = list(replays), replays[0].rows
        self.columns: dict[str, np.ndarray] = {}
        for name in replays[0].columns:
            whole = replays[0].columns[name]  # (S, rows, ...)
            if len(replays) > 1:
                whole = torch.stack([replay.columns[name][0] for replay in replays])
                for replay, part in zip(replays, whole, strict=True):
                    replay.columns[name] = part[None]
            self.columns[name] = whole.numpy()
        self.each = np.arange(len(replays))
        self.shape = replays[0].shape

    @staticmethod
    def fits(replay: FrameReplay) -> bool:
        """Whether a replay is one that can be taken in."""
        frames = replay.columns["frame"]
        return (replay.envs, replay.stack, frames.device.type) == (1, 1, "cpu") and frames.is_floating_point()

    def append(self, frames: np.ndarray, actions: np.ndarray, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Append the next frame of every run, (S, *shape), and what led to it, (S,) each."""
        written = np.array([replay.written[0] for replay in self.replays])
        at = written % self.rows
        age = self.columns["age"]
        age[self.each, at] = age[self.each, (written - 1) % self.rows] + 1
        values = {"frame": frames, "action": actions, "reward": rewards, "terminated": terminated}
        for name, value in values.items():
            self.columns[name][self.each, at] = value
        for replay in self.replays:
            replay.written[0] += 1

    def sample(self, size: int, generators: Sequence[torch.Generator]) -> tuple[Tensor, ...]:
        """`size` transitions of each run, uniform with replacement.

        Returns:
            Observations and next observations (S, size, 1, *shape), actions (S, size) int64, rewards and terminated.
        """
        ages, rows = self.columns["age"], np.empty((len(self.replays), size), np.int64)
        for i, (replay, generator) in enumerate(zip(self.replays, generators, strict=True)):
            written = replay.written[0]
            first = max(written - self.rows + replay.stack if written > self.rows else 0, replay.begins[0])
            total, age = written - first, ages[i]
            row = torch.randint(total, (size,), generator=generator).numpy() + first
            bad = age[row % self.rows] == 0
            while bad.any():  # an episode's first frame is no transition
                row[bad] = torch.randint(total, (int(bad.sum()),), generator=generator).numpy() + first
                bad = age[row % self.rows] == 0
            rows[i] = row
        run, now = self.each[:, None], rows % self.rows
        before = (rows - 1) % self.rows
        frame = self.columns["frame"]
        picked = frame[run, before], frame[run, now], self.columns["action"][run, now].astype(np.int64)
        rest = self.columns["reward"][run, now], self.columns["terminated"][run, now]
        x, following, actions, rewards, ended = (torch.from_numpy(part) for part in (*picked, *rest))
        return x[:, :, None], following[:, :, None], actions, rewards, ended
