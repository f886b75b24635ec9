"""The environments of a stream of tasks, as one emulator of `rl.dqn.episodes`."""

from collections.abc import Sequence

import numpy as np

from harness.config.errors import ConfigError
from rl.common.continual import ContinualControl, check_one_interface
from rl.dqn.episodes import Emulator


class Changing(Emulator):
    """Shows the observations of one task, and steps its environment.

    Args:
        benchmark: says what each task changes.
        names: of the environments that take turns, one or several.
        emulators: of these.
        seed: of the run.

    Raises:
        ConfigError: they have different interfaces, or lack what the benchmark changes.
    """

    def __init__(
        self, benchmark: ContinualControl, names: Sequence[str], emulators: Sequence[Emulator], seed: int
    ) -> None:
        self.benchmark, self.emulators, self.seed = benchmark, list(emulators), seed
        first = self.emulators[0]
        if benchmark.physics:
            raise ConfigError("benchmark.physics is of MuJoCo's worlds, which rl.sac has")
        check_one_interface("actions", {name: e.actions for name, e in zip(names, emulators, strict=True)})
        for name, emulator in zip(names, emulators, strict=True):
            if len(emulator.frame) != 1 and (changed := benchmark.changes_observations()):
                raise ConfigError(f"env={name} shows images, whose numbers stay: set {' '.join(changed)}")
        self.vectors = len(first.frame) == 1
        self.envs, self.actions, self.dtype, self.stack = first.envs, first.actions, first.dtype, first.stack
        self.random = any(emulator.random for emulator in emulators)
        self.frame = first.frame
        if self.vectors:
            self.frame = (benchmark.size_for(names[0], [emulator.frame[0] for emulator in emulators]),)
        elif len(first.frame) == 3:  # channels, of which games have different numbers
            self.frame = (max(emulator.frame[0] for emulator in emulators), *first.frame[1:])
        self.begin_task(0)

    def begin_task(self, task: int) -> None:
        """Be this task from now on; new episodes must begin."""
        self.change = self.benchmark.change(self.seed, task, self.frame[0])
        self.now = self.emulators[task % len(self.emulators)]
        self.limit = self.now.limit

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes; their first observations."""
        return self._observe(self.now.reset(which, seeds))

    def send(self, actions: np.ndarray) -> None:
        """Let all environments begin a step."""
        self.now.send(actions)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the step."""
        frames, rewards, terminated, truncated = self.now.recv()
        return self._observe(frames), rewards, terminated, truncated

    def picture(self, frame: np.ndarray) -> np.ndarray:
        """A picture of the task's environment."""
        return self.now.picture(frame)

    def close(self) -> None:
        """Let go of all."""
        for emulator in self.emulators:
            emulator.close()

    def _observe(self, frames: np.ndarray) -> np.ndarray:
        if self.vectors:
            return self.change.observe(frames)
        if frames.shape[1:] == self.frame:
            return frames
        padded = np.zeros((len(frames), *self.frame), frames.dtype)  # zeros in the channels that this game lacks
        padded[:, : frames.shape[1]] = frames
        return padded
