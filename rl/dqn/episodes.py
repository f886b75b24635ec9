"""Vectorised environments whose episodes can be replayed, so that a run can be resumed.

The inner state of an emulator cannot be copied, but an episode is a function of its seed and of the actions in it. So a
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
    """The interface of vectorised environments (`atari`, `classic`, `minatar`); `Episodes` adds seeds and resuming.

    Attributes:
        envs: number of environments.
        actions: number of actions.
        frame: shape of a frame.
        dtype: dtype of a frame.
        stack: number of frames in an observation.
        needs_seeds: whether an episode is repeated only if it begins with its seed: it is random, or without a seed it
            would depend on the episodes before.
        limit: actions after which an episode is truncated; None if not known.
    """

    envs: int
    actions: int
    frame: tuple[int, ...]
    dtype: torch.dtype
    stack: int = 1
    needs_seeds: bool = True
    limit: int | None = None

    def reset(self, which: list[int], seeds: list[int] | None) -> np.ndarray:
        """Begin episodes and return their first frames, (k, *frame).

        Args:
            which: numbers of the k environments.
            seeds: a seed for each; None goes on without seeding.
        """
        raise NotImplementedError

    def send(self, actions: np.ndarray) -> None:
        """Let all environments begin a step with these actions, (envs,) int64.

        Environments that are too fast for a thread to pay make the step in `recv`.
        """
        self._sent = actions

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the step and return next frames (envs, *frame), rewards, terminated and truncated, (envs,) each."""
        raise NotImplementedError

    def picture(self, frame: np.ndarray) -> np.ndarray:
        """Return a picture of the first environment, uint8 (height, width, 3); by default the frame itself.

        Args:
            frame: the newest frame; (height, width) grey, or (channels, height, width), where each channel gets a
                colour.
        """
        if frame.ndim == 2:
            return np.repeat(frame.astype(np.uint8)[..., None], 3, axis=2)
        colours = np.array([colorsys.hsv_to_rgb(i / len(frame), 0.8, 1.0) for i in range(len(frame))])  # (channels, 3)
        picture: np.ndarray = np.einsum("chw,ck->hwk", frame.astype(float), colours * 255).clip(0, 255).astype(np.uint8)
        return picture

    @property
    def steps_a_second(self) -> float | None:
        """The steps a second at which the environment is meant to be watched; None if it does not say."""
        return None

    def close(self) -> None:
        """End the threads of the environments, if they have any."""


class Step(NamedTuple):
    """The result of a step of all environments, as `rl.dqn.frames.FrameReplay` takes it.

    Attributes:
        frames: (envs, *frame), the next frames; where an episode ended, its last frame.
        rewards: (envs,) float32, not clipped.
        terminated: (envs,) bool; False where a time limit ended the episode.
        ended: (k,), the environments whose episode ended; new episodes have begun in them.
        first: (k, *frame), the first frames of these new episodes.
        returns: sums of rewards of the k episodes that ended.
    """

    frames: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    first: Tensor
    returns: list[float]


class Episodes:
    """Environments that begin a new episode, with its own seed, when one ends.

    Args:
        emulator: the environments.
        seed: seed of everything that is random in them.
        purpose: name of the stream of seeds, so that evaluation does not share those of training.
        sticky: chance that a decision is ignored and the last executed action is repeated.

    Attributes:
        observations: (envs, stack, *frame), the observations for which the next actions are chosen.
    """

    def __init__(self, emulator: Emulator, seed: int, purpose: str, sticky: float = 0.0) -> None:
        self.emulator, self.seed, self.purpose, self.sticky = emulator, seed, purpose, sticky
        envs = self.envs = emulator.envs
        self.numbers = [0] * envs  # how many episodes each environment has begun
        self.executed: list[list[int]] = [[] for _ in range(envs)]  # actions in the present episode of each
        self.returns = np.zeros(envs)
        self.observations = torch.zeros(envs, emulator.stack, *emulator.frame, dtype=emulator.dtype)
        self._generator = seeding.generator(seed, purpose, "sticky")

    def begin(self) -> Tensor:
        """Begin an episode in every environment and return the first frames, (envs, *frame)."""
        return self._begin(list(range(self.envs)))

    def send(self, actions: Tensor) -> None:
        """Let all environments begin a step with these decisions, (envs,)."""
        if self.sticky:
            last_actions = torch.tensor([executed[-1] if executed else 0 for executed in self.executed])
            repeats = torch.rand(self.envs, generator=self._generator) < self.sticky
            actions = torch.where(repeats, last_actions, actions)
        for executed, action in zip(self.executed, actions.tolist(), strict=True):
            executed.append(action)
        self.emulator.send(actions.numpy().astype(np.int64))

    def recv(self) -> Step:
        """Wait for the step, begin new episodes where one has ended, and return the result."""
        frames, rewards, terminated, truncated = self.emulator.recv()
        self.returns += rewards
        ended = np.flatnonzero(terminated | truncated).tolist()
        returns = [float(self.returns[env]) for env in ended]
        next_frames = torch.from_numpy(np.ascontiguousarray(frames))
        self.observations = torch.cat([self.observations[:, 1:], next_frames[:, None]], dim=1)
        first = self._begin(ended) if ended else next_frames[:0]
        return Step(
            next_frames,
            torch.from_numpy(rewards.astype(np.float32)),
            torch.from_numpy(terminated),
            torch.tensor(ended, dtype=torch.int64),
            first,
            returns,
        )

    def close(self) -> None:
        """Close the environments."""
        self.emulator.close()

    def _begin(self, which: list[int]) -> Tensor:
        """Begin the next episode in the environments `which` and return the first frames, (k, *frame)."""
        # Seeding takes ALE 20 times as long as starting an episode, so it is done only where it matters.
        is_seeded = self.emulator.needs_seeds or max(self.numbers) == 0
        frames = self._reset(which, [self.seed_of(env, self.numbers[env]) for env in which] if is_seeded else None)
        for env in which:
            self.numbers[env] += 1
            self.executed[env] = []
            self.returns[env] = 0
        return frames

    def _reset(self, which: list[int], seeds: list[int] | None) -> Tensor:
        """Reset the environments `which` and their observations, and return the first frames, (k, *frame)."""
        frames = torch.from_numpy(np.ascontiguousarray(self.emulator.reset(which, seeds)))
        self.observations[which] = 0
        self.observations[which, -1] = frames
        return frames

    def seed_of(self, env: int, number: int) -> int:
        """Return the seed of episode `number` (from 0) of an environment."""
        return seeding.derive(self.seed, self.purpose, env, number) % (2**31 - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return numbers (which give the seeds) and actions of the unfinished episodes."""
        return {
            "numbers": list(self.numbers),
            "executed": [torch.tensor(executed, dtype=torch.int32) for executed in self.executed],
            "returns": self.returns.tolist(),
            "observations": self.observations.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Replay the unfinished episodes.

        Returns:
            Whether the environments show the same frames as before. If not (another version of the emulator, an
            environment that is random apart from its seed), `begin` must be called to begin new episodes.
        """
        self.numbers, self.returns = list(state["numbers"]), np.array(state["returns"])
        self.executed = [executed.tolist() for executed in state["executed"]]
        self._generator.set_state(state["generator"].cpu())
        needs_seeds, all_envs = self.emulator.needs_seeds, list(range(self.envs))
        self._reset(all_envs, [self.seed_of(env, 0) for env in all_envs])
        longest = max(map(len, self.executed))
        # All environments step together. Each begins its episode late enough that all reach their former step at the
        # same time; until then it makes any steps.
        for t in range(longest + 1):
            for env, executed in enumerate(self.executed):
                if t == longest - len(executed):
                    self._reset([env], [self.seed_of(env, self.numbers[env] - 1)] if needs_seeds else None)
            if t < longest:
                positions = [t - longest + len(executed) for executed in self.executed]  # below 0: not begun yet
                actions = [
                    executed[position] if position >= 0 else 0
                    for position, executed in zip(positions, self.executed, strict=True)
                ]
                self.emulator.send(np.array(actions, dtype=np.int64))
                new_frames, _, terminated, truncated = self.emulator.recv()
                frames = torch.from_numpy(np.ascontiguousarray(new_frames))
                self.observations = torch.cat([self.observations[:, 1:], frames[:, None]], dim=1)
                ended = np.flatnonzero(terminated | truncated).tolist()
                if any(positions[env] >= 0 for env in ended):  # the episode did not end here before
                    return False
                ended_waiting = [env for env in ended if positions[env] < 0]
                if ended_waiting and needs_seeds:  # an environment must not be stepped beyond an episode's end
                    self._reset(ended_waiting, [self.seed_of(env, 0) for env in ended_waiting])
        return torch.equal(self.observations, state["observations"].cpu())
