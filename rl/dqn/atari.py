"""Atari games through ALE's own vector environment: the emulators run in C++ threads and return preprocessed frames."""

import difflib
import os
import re
from typing import Annotated, Any

import numpy as np
import torch
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from fire_core.ranges import Count, Decay, checked, one_of, within
from harness.config.checks import Threads
from harness.config.errors import ConfigError
from rl.dqn.episodes import Emulator, Episodes

NEVER = 1_000_000_000  # frames, more than any episode has
FRAMES_OF_AN_ACTION = 4  # for how many frames ALE's vector environment repeats an action
TWO_PLAYERS = ("combat", "joust", "maze_craze", "warlords")  # ALE's emulator ends the process where it loads one

# Games in which an episode does not depend on those before. In others, such as beam_rider, demon_attack and seaquest,
# the emulator keeps something when it is reset. Seeding loads the game anew, so these episodes begin with a seed each.
# Found by 60 resets after random play of up to 900 frames, after which the memory was that of a new emulator, and 40
# episodes of 400 decisions, in which frames and rewards were those after seeding.
FORGETS_EPISODES = frozenset({
    "alien", "amidar", "asterix", "bank_heist", "battle_zone", "breakout",
    "crazy_climber", "enduro", "gopher", "jamesbond", "kangaroo", "montezuma_revenge",
    "ms_pacman", "pong", "qbert", "road_runner", "space_invaders", "up_n_down",
})  # fmt: skip


class Atari(Emulator):
    """An emulator of `rl.dqn.episodes`: grey 84x84 frames, the maximum of the last two of each four (Nature DQN).

    Args:
        game: name of the game in any spelling (`beam_rider`, `BeamRider`).
        envs: number of environments.
        sticky: chance, for each frame, that the emulator repeats the last action.
        noop_max: largest number of frames without action at an episode's start.
        fire_reset: press fire at an episode's start in games that wait for it.
        max_frames: length at which an episode is truncated.
        threads: threads of the emulator; None takes one for each environment, but at most one for each core.

    Raises:
        ConfigError: there is no such game.
    """

    stack = 4
    frame = (84, 84)
    dtype = torch.uint8

    def __init__(
        self,
        game: str,
        envs: int,
        sticky: float = 0.0,
        noop_max: int = 0,
        fire_reset: bool = False,
        max_frames: int = 108_000,
        threads: int | None = None,
    ) -> None:
        self.envs = envs
        name = find_game(game)
        self.needs_seeds = sticky > 0 or noop_max > 0 or name not in FORGETS_EPISODES
        # Episodes are truncated here: in one that ALE itself ends, the last frame is mixed with the one before. After
        # a termination that frame is not used, but after a truncation the learner bootstraps from it.
        self._max_frames, self.limit = max_frames, -(-max_frames // FRAMES_OF_AN_ACTION)
        self._env = AtariVectorEnv(
            name,
            envs,
            num_threads=threads or min(envs, os.cpu_count() or 1),
            repeat_action_probability=sticky,
            noop_max=noop_max,
            use_fire_reset=fire_reset,
            max_num_frames_per_episode=NEVER,
            reward_clipping=False,
            # `reset` starts the next episode, with its own seed, before the next step. So the environment's automatic
            # reset never happens, and the last frame of an episode is returned.
            autoreset_mode=AutoresetMode.NEXT_STEP,
        )
        space: Any = self._env.single_action_space
        self.actions = int(space.n)

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes in the environments `which` and return their first frames, (k, 84, 84)."""
        mask = np.zeros(self.envs, dtype=bool)
        mask[which] = True
        options = {} if mask.all() else {"reset_mask": mask}
        observations, _ = self._env.reset(seed=None if seeds is None else np.array(seeds), options=options)
        frames: np.ndarray = observations[which, -1]
        return frames

    def send(self, actions: np.ndarray) -> None:
        """Let all environments begin a step."""
        self._env.send(actions)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the step and return next frames (envs, 84, 84), rewards, terminated and truncated, (envs,) each."""
        observations, rewards, terminated, _, info = self._env.recv()
        truncated = (info["episode_frame_number"] >= self._max_frames) & ~terminated
        return observations[:, -1], rewards, terminated, truncated

    def close(self) -> None:
        """End the emulator's threads, by dropping the object that has them."""
        del self._env


def find_game(name: str) -> str:
    """Return ALE's name of a game, whatever case and separators `name` has.

    Raises:
        ConfigError: there is no such game, with similar names; or it is one for two players.
    """
    games = {"".join(filter(str.isalnum, rom)): rom for rom in roms.get_all_rom_ids()}
    key = "".join(filter(str.isalnum, name)).lower()
    if key not in games:
        stem = re.sub(r"^ALE/|(-ram)?(NoFrameskip|Deterministic)?-v\d+$", "", name)
        if (stem_key := "".join(filter(str.isalnum, stem)).lower()) in games:
            raise ConfigError(
                f"env.game={name} is an id of gymnasium, with options of its own: here it is "
                f"env.game={games[stem_key]}, with those of conf/env/asterix.yaml"
            )
        similar = [games[k] for k in difflib.get_close_matches(key, games, 4, 0.5)]
        hint = f"near it: {', '.join(similar)}" if similar else f"for example asterix; ale-py knows {len(games)} games"
        raise ConfigError(f"env.game={name} is unknown; {hint}")
    if games[key] in TWO_PLAYERS:
        raise ConfigError(f"env.game={name} is a game for two players, which ALE does not play")
    return games[key]


@checked
def make(
    envs: Count,
    seed: int,
    purpose: str,
    game: str,
    sticky: Decay = 0.25,
    sticky_per: Annotated[str, one_of("decision", "frame")] = "decision",
    noop_max: Annotated[int, within(0, 1_000_000)] = 0,
    fire_reset: bool = False,
    max_frames: Annotated[int, within(1, NEVER)] = 108_000,
    threads: Threads = None,
) -> Episodes:
    """Make environments for `rl.dqn`; the options are those of conf/env/asterix.yaml.

    Raises:
        ConfigError: an option is out of its range.
    """
    by_frame = sticky_per == "frame"
    emulator = Atari(game, envs, sticky if by_frame else 0.0, noop_max, fire_reset, max_frames, threads)
    return Episodes(emulator, seed, purpose, 0.0 if by_frame else sticky)
