"""One Atari game, stepped frame by frame in Python: what the vector environment must equal."""

import ale_py
import numpy as np
from ale_py import roms


class SlowAtari:
    """Frame skip 4 with the maximum of the last two frames, grey, 84x84 by area, stack 4, no-ops, fire.

    Args:
        game: ALE's name.
        seed: as the vector environment takes it.
        sticky: chance that the emulator repeats an action, for each frame.
        max_frames: after so many an episode is cut.
    """

    def __init__(self, game: str, seed: int, sticky: float, max_frames: int) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(roms.get_rom_path(game))
        self.max_frames = max_frames
        self.actions = self.ale.getMinimalActionSet()
        height, width = self.ale.getScreenDims()
        self.rows, self.columns = area(height, 84), area(width, 84)

    def reset(self) -> np.ndarray:
        self.ale.reset_game()
        self.observation = np.zeros((4, 84, 84), dtype=np.uint8)
        return self._push(self.ale.getScreenGrayscale())

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        reward, screens = 0.0, []
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                return self._push(screens[-1]), reward, True, False  # the vector environment's last frame is another
        cut = self.ale.getEpisodeFrameNumber() >= self.max_frames
        return self._push(np.maximum(*screens[-2:])), reward, False, cut

    def _push(self, screen: np.ndarray) -> np.ndarray:
        small = self.rows @ screen.astype(np.float64).reshape(screen.shape[:2]) @ self.columns.T
        self.observation = np.concatenate([self.observation[1:], np.rint(small).astype(np.uint8)[None]])
        return self.observation


def area(old: int, new: int) -> np.ndarray:
    """(new, old) weights with which each new pixel is the mean of the old ones that it covers."""
    edges = np.arange(new + 1) * old / new
    overlap = np.minimum(edges[1:, None], np.arange(1, old + 1)) - np.maximum(edges[:-1, None], np.arange(old))
    return np.clip(overlap, 0, None) / (old / new)
