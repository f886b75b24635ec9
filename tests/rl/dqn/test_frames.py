"""The frame replay against a naive buffer that keeps every stack."""

import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.config import memory
from harness.config.errors import ConfigError
from rl.dqn.frames import FrameReplay

SHAPE = (2, 3)


class Naive:
    """Plays episodes of random lengths; keeps every transition with both of its stacks."""

    def __init__(self, replay: FrameReplay, seed: int) -> None:
        self.replay, self.dice, self.stack = replay, random.Random(seed), replay.stack
        self.seen: list[dict[int, tuple[bytes, bytes, int, float, bool]]] = [{} for _ in range(replay.envs)]
        self.stacks = [self.zeros() for _ in range(replay.envs)]
        self.rows = [0] * replay.envs
        self.frames = 0
        self.begin(list(range(replay.envs)))

    def zeros(self) -> Tensor:
        return torch.zeros(self.stack, *SHAPE, dtype=torch.uint8)

    def frame(self) -> Tensor:
        self.frames += 1
        return torch.randint(1, 256, SHAPE, dtype=torch.uint8, generator=torch.Generator().manual_seed(self.frames))

    def begin(self, envs: list[int]) -> None:
        frames = torch.stack([self.frame() for _ in envs])
        for env, frame in zip(envs, frames, strict=True):
            self.stacks[env] = torch.cat([self.zeros()[1:], frame[None]])
            self.rows[env] += 1
        self.replay.start(torch.tensor(envs), frames)

    def step(self) -> None:
        envs = range(self.replay.envs)
        frames = torch.stack([self.frame() for _ in envs])
        actions = [self.dice.randrange(18) for _ in envs]
        rewards = [self.dice.choice((-1.0, 0.0, 2.5)) for _ in envs]
        ended = [self.dice.random() < 0.2 for _ in envs]
        terminated = [end and self.dice.random() < 0.5 for end in ended]  # the others are cut by a time limit
        self.replay.append(frames, torch.tensor(actions), torch.tensor(rewards), torch.tensor(terminated))
        for env in envs:
            after = torch.cat([self.stacks[env][1:], frames[env][None]])
            key = (self.stacks[env].numpy().tobytes(), after.numpy().tobytes())
            self.seen[env][self.rows[env]] = (*key, actions[env], rewards[env], terminated[env])
            self.stacks[env] = after
            self.rows[env] += 1
        if over := [env for env in envs if ended[env]]:
            self.begin(over)

    def held(self) -> set[Any]:
        """What may be sampled: in a full ring the stacks of the oldest rows are not whole."""
        replay = self.replay
        oldest = [w - replay.rows + replay.stack if w > replay.rows else 0 for w in replay.written]
        return {value for env, kept in enumerate(self.seen) for row, value in kept.items() if row >= oldest[env]}


def sampled(replay: FrameReplay, size: int, seed: int = 0) -> list[Any]:
    batch = replay.sample(size, torch.Generator().manual_seed(seed))
    rest = zip(batch.actions.tolist(), batch.rewards.tolist(), batch.terminated.tolist(), strict=True)
    return [
        (f[:-1].numpy().tobytes(), f[1:].numpy().tobytes(), *others)
        for f, others in zip(batch.frames, rest, strict=True)
    ]


@pytest.mark.parametrize("steps", [1, 7, 60])
@pytest.mark.parametrize(("envs", "stack", "capacity"), [(1, 4, 12), (3, 4, 60), (2, 1, 16), (4, 3, 1000)])
def test_samples_exactly_the_transitions_that_happened(envs: int, stack: int, capacity: int, steps: int) -> None:
    replay = FrameReplay(capacity, envs, SHAPE, stack=stack)
    naive = Naive(replay, seed=envs + steps)
    for _ in range(steps):
        naive.step()
    assert replay.written == naive.rows
    got = sampled(replay, 4000)
    assert set(got) == naive.held()  # none that never was, none across an episode's end, and none left out


def test_sampling_is_uniform() -> None:
    replay = FrameReplay(80, 2, SHAPE)
    naive = Naive(replay, seed=1)
    for _ in range(30):
        naive.step()
    draws, held = 60_000, naive.held()
    counts = torch.tensor([float(count) for count in Counter(sampled(replay, draws)).values()])
    expected = draws / len(held)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert len(counts) == len(held)
    assert chi_squared < len(held) + 5 * (2 * len(held)) ** 0.5


def test_too_little_memory_is_said_with_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10_000_000)
    memory.check_fits("replay.capacity", 1000, 7066, "cpu")
    with pytest.raises(ConfigError, match=r"replay.capacity=9000 needs 0.1 GB .* replay.capacity=1000 fits"):
        memory.check_fits("replay.capacity", 9000, 7066, "cpu")


def test_a_part_that_holds_first_frames_alone_is_drawn_from_all() -> None:
    replay = FrameReplay(100, 1, SHAPE)
    naive = Naive(replay, seed=1)
    for _ in range(5):
        naive.step()
    env, row = replay.draw(8, torch.Generator().manual_seed(0), (0.0, 0.1))
    assert replay.columns["age"][env, row].all()
