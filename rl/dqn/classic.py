"""Gymnasium's small control tasks for `rl.dqn`: seconds instead of hours, for quick trials and tests."""

import gymnasium
import numpy as np
import torch

from fire_core.ranges import Count, checked
from harness.config.errors import ConfigError
from rl.common.physics import Physics
from rl.dqn.episodes import Emulator, Episodes


class Classic(Emulator):
    """An emulator of `rl.dqn.episodes` around environments with a vector of numbers and a few actions.

    Args:
        task: gymnasium's name.
        envs: how many at once.

    Raises:
        ConfigError: there is no such task, its actions are not discrete, or its observations are no vector.
    """

    dtype = torch.float32

    def __init__(self, task: str, envs: int) -> None:
        try:
            self._envs = [gymnasium.make(task, disable_env_checker=True) for _ in range(envs)]
        except gymnasium.error.Error as error:
            raise ConfigError(f"env.game={task}: {error}") from None
        space = self._envs[0].action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise ConfigError(f"env.game={task}: DQN needs a task with discrete actions")
        self.envs, self.actions = envs, int(space.n)
        seen = self._envs[0].observation_space
        if not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1:
            raise ConfigError(f"env.game={task}: observations must be a vector of numbers, not {seen}")
        self.frame: tuple[int, ...] = seen.shape
        self._pending = np.zeros(envs, dtype=np.int64)
        self._physics = [Physics(env) for env in self._envs]
        self.parameters = self._physics[0].names

    def change_physics(self, factors: dict[str, float]) -> None:
        """Scale parameters of the simulation."""
        for physics in self._physics:
            physics.change(factors)

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes; their first observations."""
        assert seeds is not None, "these tasks are random"
        return np.stack([self._envs[env].reset(seed=seed)[0] for env, seed in zip(which, seeds, strict=True)])

    def send(self, actions: np.ndarray) -> None:
        """Store the actions; the tasks are too fast for a thread to pay."""
        self._pending = actions

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Make the step."""
        steps = [env.step(action) for env, action in zip(self._envs, self._pending, strict=True)]
        frames, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        ends = np.array(terminated)
        return np.stack(frames), np.array(rewards), ends, np.array(truncated) & ~ends, np.zeros(self.envs, dtype=bool)

    def close(self) -> None:
        """Let go of them."""
        for env in self._envs:
            env.close()


@checked
def make(envs: Count, seed: int, purpose: str, game: str) -> Episodes:
    """Environments for `rl.dqn`."""
    return Episodes(Classic(game, envs), seed, purpose)
