"""An emulator of `rl.dqn.episodes` for a stream of tasks, whose environments take turns."""

from collections.abc import Sequence

import numpy as np

from harness.config.errors import ConfigError
from rl.common.continual import ContinualControl, check_one_interface
from rl.dqn.episodes import Emulator


class Changing(Emulator):
    """Steps the environment of the present task, and shows its observations as the task changes them.

    Args:
        benchmark: says what each task changes.
        names: names of the environments that take turns, one or several.
        emulators: the emulator of each environment.
        seed: seed of the run.

    Raises:
        ConfigError: the environments have different interfaces, or lack what the benchmark changes.
    """

    def __init__(
        self, benchmark: ContinualControl, names: Sequence[str], emulators: Sequence[Emulator], seed: int
    ) -> None:
        self.benchmark, self.emulators, self.seed = benchmark, list(emulators), seed
        first = self.emulators[0]
        if benchmark.physics:
            raise ConfigError("benchmark.physics changes environments of MuJoCo, which rl.sac alone has")
        check_one_interface("actions", {name: e.actions for name, e in zip(names, emulators, strict=True)})
        for name, emulator in zip(names, emulators, strict=True):
            if len(emulator.frame) != 1 and (changed := benchmark.changes_observations()):
                raise ConfigError(
                    f"env={name} shows images, which this benchmark cannot permute: set {' '.join(changed)}"
                )
        self.vectors = len(first.frame) == 1  # whether observations are vectors; if not, they are images
        self.envs, self.actions, self.dtype, self.stack = first.envs, first.actions, first.dtype, first.stack
        self.needs_seeds = any(emulator.needs_seeds for emulator in emulators)
        self.frame = first.frame
        if self.vectors:
            self.frame = (benchmark.size_for(names[0], [emulator.frame[0] for emulator in emulators]),)
        elif len(first.frame) == 3:  # channels, of which games have different numbers
            self.frame = (max(emulator.frame[0] for emulator in emulators), *first.frame[1:])
        self.begin_task(0)

    @property
    def steps_a_second(self) -> float | None:
        """The rate of the present environment."""
        return self.current.steps_a_second

    def begin_task(self, task: int) -> None:
        """Change to this task; new episodes must be begun afterwards."""
        self.change = self.benchmark.change(self.seed, task, self.frame[0])
        self.current = self.emulators[task % len(self.emulators)]
        self.limit = self.current.limit

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes in the environments `which` and return their first observations, (k, *frame)."""
        return self._observe(self.current.reset(which, seeds))

    def send(self, actions: np.ndarray) -> None:
        """Let all environments begin a step."""
        self.current.send(actions)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the step; see `Emulator.recv`."""
        frames, rewards, terminated, truncated = self.current.recv()
        return self._observe(frames), rewards, terminated, truncated

    def picture(self, frame: np.ndarray) -> np.ndarray:
        """Return a picture of the task's environment; see `Emulator.picture`."""
        return self.current.picture(frame)

    def close(self) -> None:
        """Close all emulators."""
        for emulator in self.emulators:
            emulator.close()

    def _observe(self, frames: np.ndarray) -> np.ndarray:
        """Return observations (k, ...) of the environment as the task shows them, (k, *frame)."""
        if self.vectors:
            return self.change.observe(frames)
        if frames.shape[1:] == self.frame:
            return frames
        padded = np.zeros((len(frames), *self.frame), frames.dtype)  # zeros in the channels that this game lacks
        padded[:, : frames.shape[1]] = frames
        return padded
