"""Vectorised environments whose episodes can be replayed: what the trainer steps, saves and resumes.

An emulator's inner state cannot be copied out, but an episode is a function of its seed and of the actions in it. So a
checkpoint holds these, and a resumed run replays unfinished episodes, in a fraction of the time.
"""

import colorsys
import logging
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.training import seeding

log = logging.getLogger(__name__)


class Emulator:
    """Vectorised environments without named seeds, stacks or resuming (`atari`, `classic`, `minatar`).

    Attributes:
        envs: their number.
        actions: number of actions.
        frame: shape of a frame.
        dtype: of a frame.
        stack: frames in an observation.
        random: whether an episode depends on its seed.
        limit: actions after which an episode is truncated; None: not known.
    """

    envs: int
    actions: int
    frame: tuple[int, ...]
    dtype: torch.dtype
    stack: int = 1
    random: bool = True
    limit: int | None = None

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes; their first frames, (k, *frame)."""
        raise NotImplementedError

    def send(self, actions: np.ndarray) -> None:
        """Let all environments begin a step, (envs,) int64; those too fast for a thread to pay make it in `recv`."""
        self._sent = actions

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the step: next frames, rewards, terminated, truncated."""
        raise NotImplementedError

    def picture(self, frame: np.ndarray) -> np.ndarray:
        """A picture of the first environment, uint8 (height, width, 3): by default the frame that the agent sees.

        Args:
            frame: its newest one; (height, width) grey, or (channels, height, width) with a colour for each channel.
        """
        if frame.ndim == 2:
            return np.repeat(frame.astype(np.uint8)[..., None], 3, axis=2)
        colours = np.array([colorsys.hsv_to_rgb(i / len(frame), 0.8, 1.0) for i in range(len(frame))])  # (channels, 3)
        picture: np.ndarray = np.einsum("chw,ck->hwk", frame.astype(float), colours * 255).clip(0, 255).astype(np.uint8)
        return picture

    def close(self) -> None:
        """Let go of threads."""


class Step(NamedTuple):
    """The result of a step of all environments, as `rl.dqn.frames.FrameReplay` takes it.

    Attributes:
        frames: (envs, *frame), in an ended episode its last.
        rewards: (envs,) float32, not clipped.
        terminated: (envs,) bool; not where a time limit ended the episode.
        ended: (k,) environments whose episode ended; new ones have started.
        first: (k, *frame) the first frames of those.
        returns: (k,) sums of rewards of the ended episodes.
    """

    frames: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    first: Tensor
    returns: list[float]


class Episodes:
    """Environments that start a new episode, with its own seed, when one ends.

    Args:
        emulator: the environments.
        seed: of all that is random in them.
        purpose: names the stream, so that evaluation does not share the training's.
        sticky: chance that a decision is ignored and the last executed action is repeated.

    Attributes:
        observations: (envs, stack, *frame) what the next actions are chosen for.
    """

    def __init__(self, emulator: Emulator, seed: int, purpose: str, sticky: float = 0.0) -> None:
        self.emulator, self.seed, self.purpose, self.sticky = emulator, seed, purpose, sticky
        envs = self.envs = emulator.envs
        self.numbers = [0] * envs  # episodes begun
        self.executed: list[list[int]] = [[] for _ in range(envs)]  # actions since their beginning
        self.returns = np.zeros(envs)
        self.observations = torch.zeros(envs, emulator.stack, *emulator.frame, dtype=emulator.dtype)
        self._generator = seeding.generator(seed, purpose, "sticky")

    def begin(self) -> Tensor:
        """Begin an episode everywhere; the first frames, (envs, *frame)."""
        return self._begin(list(range(self.envs)))

    def send(self, actions: Tensor) -> None:
        """Let all environments begin a step with these decisions, (envs,)."""
        if self.sticky:
            last = torch.tensor([done[-1] if done else 0 for done in self.executed])
            actions = torch.where(torch.rand(self.envs, generator=self._generator) < self.sticky, last, actions)
        for done, action in zip(self.executed, actions.tolist(), strict=True):
            done.append(action)
        self.emulator.send(actions.numpy().astype(np.int64))

    def recv(self) -> Step:
        """Wait for the step; where an episode ended the next one begins."""
        frames, rewards, terminated, truncated = self.emulator.recv()
        self.returns += rewards
        ended = np.flatnonzero(terminated | truncated).tolist()
        returns = [float(self.returns[env]) for env in ended]
        step = torch.from_numpy(np.ascontiguousarray(frames))
        self.observations = torch.cat([self.observations[:, 1:], step[:, None]], dim=1)
        first = self._begin(ended) if ended else step[:0]
        return Step(
            step,
            torch.from_numpy(rewards.astype(np.float32)),
            torch.from_numpy(terminated),
            torch.tensor(ended, dtype=torch.int64),
            first,
            returns,
        )

    def close(self) -> None:
        """Let go of threads."""
        self.emulator.close()

    def _begin(self, which: list[int]) -> Tensor:
        # Seeding takes ALE 20 times as long as starting an episode, so it is done only where it matters.
        anew = self.emulator.random or max(self.numbers) == 0
        frames = self._reset(which, [self.seed_of(env, self.numbers[env]) for env in which] if anew else None)
        for env in which:
            self.numbers[env] += 1
            self.executed[env] = []
            self.returns[env] = 0
        return frames

    def _reset(self, which: list[int], seeds: list[int] | None) -> Tensor:
        frames = torch.from_numpy(np.ascontiguousarray(self.emulator.reset(which, seeds)))
        self.observations[which] = 0
        self.observations[which, -1] = frames
        return frames

    def seed_of(self, env: int, number: int) -> int:
        """The seed of episode `number` (from 0) of an environment."""
        return seeding.derive(self.seed, self.purpose, env, number) % (2**31 - 1)

    def state_dict(self) -> dict[str, Any]:
        """Seeds and actions of the unfinished episodes."""
        return {
            "numbers": list(self.numbers),
            "executed": [torch.tensor(done, dtype=torch.int32) for done in self.executed],
            "returns": self.returns.tolist(),
            "observations": self.observations.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Replay the unfinished episodes.

        Returns:
            Whether the environments show the same frames as before. If not (another version of the emulator, an
            environment that is random beside its seed), new episodes begin when `begin` is called.
        """
        self.numbers, self.returns = list(state["numbers"]), np.array(state["returns"])
        self.executed = [done.tolist() for done in state["executed"]]
        self._generator.set_state(state["generator"].cpu())
        random, everywhere = self.emulator.random, list(range(self.envs))
        self._reset(everywhere, [self.seed_of(env, 0) for env in everywhere])
        longest = max(map(len, self.executed))
        for t in range(longest + 1):  # each starts late enough that all reach their former step at the same time
            for env, done in enumerate(self.executed):
                if t == longest - len(done):
                    self._reset([env], [self.seed_of(env, self.numbers[env] - 1)] if random else None)
            if t < longest:
                at = [t - longest + len(done) for done in self.executed]
                actions = [done[k] if k >= 0 else 0 for k, done in zip(at, self.executed, strict=True)]
                self.emulator.send(np.array(actions, dtype=np.int64))
                shown, _, terminated, truncated = self.emulator.recv()
                frames = torch.from_numpy(np.ascontiguousarray(shown))
                self.observations = torch.cat([self.observations[:, 1:], frames[:, None]], dim=1)
                ended = np.flatnonzero(terminated | truncated).tolist()
                if any(at[env] >= 0 for env in ended):  # an unfinished episode did not end here
                    return False
                over = [env for env in ended if at[env] < 0]
                if over and random:  # one that waits for its start must not be stepped beyond its end
                    self._reset(over, [self.seed_of(env, 0) for env in over])
        return torch.equal(self.observations, state["observations"].cpu())
