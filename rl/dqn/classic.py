"""Gymnasium's small control tasks for `rl.dqn`: seconds instead of hours, for quick trials and tests."""

import gymnasium
import numpy as np
import torch

from fire_core.ranges import Count, checked
from harness.config.errors import ConfigError
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

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes; their first observations."""
        assert seeds is not None, "these tasks are random"
        return np.stack([self._envs[env].reset(seed=seed)[0] for env, seed in zip(which, seeds, strict=True)])

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Make the step."""
        steps = [env.step(action) for env, action in zip(self._envs, self._sent, strict=True)]
        frames, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        ends = np.array(terminated)
        return np.stack(frames), np.array(rewards), ends, np.array(truncated) & ~ends

    def close(self) -> None:
        """Let go of them."""
        for env in self._envs:
            env.close()


@checked
def make(envs: Count, seed: int, purpose: str, game: str) -> Episodes:
    """Environments for `rl.dqn`."""
    return Episodes(Classic(game, envs), seed, purpose)
