"""MinAtar's five small games (Young and Tian, arXiv 1903.03176), for `rl.dqn`: an optional package, under the GPL.

A screen is 10x10 with a channel for each kind of object; all games have the same six actions.
"""

import importlib
from typing import Annotated, Any

import numpy as np
import torch

from fire_core.ranges import Count, Decay, checked, one_of, within
from harness.config.errors import ConfigError
from rl.dqn.episodes import Emulator, Episodes

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtar(Emulator):
    """An emulator of `rl.dqn.episodes`: frames (channels, 10, 10) of 0 and 1.

    Args:
        game: name of the game.
        envs: number of environments.
        sticky: chance that the last action is repeated.
        ramping: whether games become harder within an episode.
        max_frames: length at which an episode is truncated.

    Raises:
        ConfigError: the package is missing.
    """

    dtype = torch.uint8

    def __init__(
        self, game: str, envs: int, sticky: float = 0.1, ramping: bool = True, max_frames: int = 10_000
    ) -> None:
        try:
            environment: Any = importlib.import_module("minatar").Environment
        except ImportError:
            raise ConfigError(f"env=minatar_{game} needs the package minatar: pip install minatar") from None
        self._games = [environment(game, sticky, ramping) for _ in range(envs)]
        height, width, channels = self._games[0].state_shape()
        self.envs, self.actions = envs, int(self._games[0].num_actions())
        self.frame: tuple[int, ...] = (channels, height, width)
        self._max_frames = self.limit = max_frames
        self._lengths = np.zeros(envs, dtype=np.int64)

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes in the environments `which` and return their first frames, (k, channels, 10, 10)."""
        assert seeds is not None, "these games are random"
        for env, seed in zip(which, seeds, strict=True):
            game = self._games[env]
            game.seed(seed)
            game.reset()
            game.last_action = 0  # otherwise a sticky action would repeat one of the episode before
            self._lengths[env] = 0
        return np.stack([self._frame(env) for env in which])

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Make the step that `send` has ordered; see `Emulator.recv`."""
        steps = [game.act(action) for game, action in zip(self._games, self._sent.tolist(), strict=True)]
        self._lengths += 1
        rewards, ends = np.array([reward for reward, _ in steps], np.float64), np.array([end for _, end in steps], bool)
        frames = np.stack([self._frame(env) for env in range(self.envs)])
        return frames, rewards, ends, (self._lengths >= self._max_frames) & ~ends

    def _frame(self, env: int) -> np.ndarray:
        shown: np.ndarray = self._games[env].state().transpose(2, 0, 1).astype(np.uint8)
        return shown


@checked
def make(
    envs: Count,
    seed: int,
    purpose: str,
    game: Annotated[str, one_of(*GAMES)],
    sticky: Decay = 0.1,
    ramping: bool = True,
    max_frames: Annotated[int, within(1, 1_000_000_000)] = 10_000,
) -> Episodes:
    """Make environments for `rl.dqn`; the options are those of conf/env/minatar_asterix.yaml.

    Raises:
        ConfigError: an option is out of its range, or the package is missing.
    """
    return Episodes(MinAtar(game, envs, sticky, ramping, max_frames), seed, purpose)
