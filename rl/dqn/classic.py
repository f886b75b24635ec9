"""Gymnasium's environments with vectors of numbers and discrete actions, for `rl.dqn`.

These are its small control tasks, which take seconds instead of hours, and a user's own environments.
"""

from typing import Any

import numpy as np
import torch

from fire_core.ranges import Count, checked
from rl.common.environments import Environment, make_gymnasium
from rl.common.examine import examine
from rl.common.film import rendered, steps_a_second
from rl.common.spaces import check_discrete
from rl.dqn.episodes import Emulator, Episodes


class Classic(Emulator):
    """An emulator of `rl.dqn.episodes` around environments that step one after the other.

    Args:
        task: gymnasium's id, `module:Name-v0` if a module of the user registers it.
        envs: number of environments.
        options: further arguments of `gymnasium.make`.

    Raises:
        ConfigError: there is no such task, its actions are not discrete, its observations are no vectors, or it does
            not return what its spaces say.
    """

    dtype = torch.float32

    def __init__(self, task: str, envs: int, options: dict[str, Any] | None = None) -> None:
        name, options = f"env.game={task}", options or {}
        first = Environment(name, make_gymnasium("env.game", task, options))
        space = check_discrete(name, first.action_space)
        # DQN counts actions from 0, the environment from where its space starts.
        self._first_action, self._action_type = int(space.start), space.dtype.type
        others = [Environment(name, make_gymnasium("env.game", task, options)) for _ in range(envs - 1)]
        self._envs = [first, *others]
        for environment in self._envs:
            examine(environment, "env.game", task, options, self._action_type(self._first_action))
        self.envs, self.actions, self.limit = envs, int(space.n), first.limit
        self.frame: tuple[int, ...] = (first.size,)

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes in the environments `which` and return their first observations, (k, size)."""
        assert seeds is not None, "these tasks are random"
        return np.stack([self._envs[env].reset(seed) for env, seed in zip(which, seeds, strict=True)])

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Make the step that `send` has ordered; see `Emulator.recv`."""
        actions = [self._action_type(self._first_action + action) for action in self._sent.tolist()]
        steps = [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
        frames, rewards, terminated, truncated = zip(*steps, strict=True)
        ends = np.array(terminated)
        return np.stack(frames), np.array(rewards), ends, np.array(truncated) & ~ends

    def picture(self, frame: np.ndarray) -> np.ndarray:
        """Return what the first environment draws; its options must have `render_mode: rgb_array`."""
        return rendered(self._envs[0].name, self._envs[0].env)

    @property
    def steps_a_second(self) -> float | None:
        """The environment's own rate."""
        return steps_a_second(self._envs[0].env)

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()


@checked
def make(envs: Count, seed: int, purpose: str, game: str, options: dict[str, Any] | None = None) -> Episodes:
    """Make environments for `rl.dqn`; the options are those of conf/env/cartpole.yaml."""
    return Episodes(Classic(game, envs, options), seed, purpose)
