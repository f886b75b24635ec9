"""What the trainer sees of episodes, against ALE's own stacks, and that they are repeated after a resume."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from ale_py import ALEInterface, roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from rl.dqn import atari, classic
from rl.dqn.atari import Atari, find_game
from rl.dqn.episodes import Episodes, Step
from rl.dqn.frames import FrameReplay


def random_steps(env: Episodes, steps: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, Step]]:
    dice = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        actions = torch.randint(env.emulator.actions, (env.envs,), generator=dice)
        env.send(actions)
        yield actions, env.recv()


@pytest.mark.parametrize("options", [{}, {"noop_max": 30, "fire_reset": True}])
def test_our_stacks_are_ale_s(options: dict[str, Any]) -> None:
    """Also at an episode's start, where ALE has nothing but zeros before the first frame. ALE takes the same steps."""
    env = Episodes(Atari("breakout", 2, max_frames=4 * 30, **options), 0, "test")
    ale = AtariVectorEnv(
        "breakout",
        2,
        num_threads=1,
        repeat_action_probability=0.0,
        noop_max=options.get("noop_max", 0),
        use_fire_reset=options.get("fire_reset", False),
        reward_clipping=False,
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )
    env.begin()
    ale.reset(seed=np.array([env.seed_of(i, 0) for i in range(2)]))
    ends = 0
    for actions, step in random_steps(env, 40):
        ale.send(actions.numpy())
        stacks, rewards, terminated, *_ = ale.recv()
        assert (step.rewards.tolist(), step.terminated.tolist()) == (rewards.tolist(), terminated.tolist())
        if which := step.ended.tolist():
            ends += 1
            seeds = np.array([env.seed_of(i, env.numbers[i] - 1) for i in which])
            mask = np.isin(np.arange(2), which)
            stacks = ale.reset(seed=seeds, options={} if mask.all() else {"reset_mask": mask})[0]
        assert np.array_equal(env.observations.numpy(), stacks)
    assert ends


def played(env: Episodes, steps: int, replay: FrameReplay | None = None) -> tuple[FrameReplay, list[torch.Tensor]]:
    """A replay of these steps, and the observations that the actions were chosen for."""
    emulator = env.emulator
    if replay is None:
        replay = FrameReplay(4000, env.envs, emulator.frame, emulator.dtype, emulator.stack)
        replay.start(torch.arange(env.envs), env.begin())
    seen = [env.observations.clone()]
    for actions, step in random_steps(env, steps):
        replay.append(step.frames, actions, step.rewards, step.terminated)
        replay.start(step.ended, step.first)
        seen.append(env.observations.clone())
    return replay, seen


def same_steps(one: Episodes, other: Episodes, steps: int) -> None:
    pairs = zip(random_steps(one, steps, 5), random_steps(other, steps, 5), strict=True)
    for (_, a), (_, b) in pairs:
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
        assert a.returns == b.returns
        assert torch.equal(one.observations, other.observations)


OPTIONS: list[dict[str, Any]] = [
    {"game": "breakout", "sticky_per": "frame", "max_frames": 4 * 25},
    {"game": "breakout", "noop_max": 30, "fire_reset": True, "sticky": 0.0},
    {"game": "breakout", "max_frames": 4 * 25},
    {"game": "beam_rider", "max_frames": 4 * 25},
    {"game": "seaquest"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_resumed_environment_goes_on_bit_for_bit(options: dict[str, Any]) -> None:
    """With another number of threads."""
    env = atari.make(3, 4, "train", **options)
    played(env, 80)
    again = atari.make(3, 4, "train", threads=1, **options)
    assert again.load_state_dict(env.state_dict())
    same_steps(env, again, 90)
    env.close()
    again.close()


def remembers(game: str) -> bool:
    """Whether the memory of a game's emulator is another one than that of a new emulator, if it was played before."""
    emulator = ALEInterface()
    emulator.setInt("random_seed", 0)
    emulator.loadROM(roms.get_rom_path(game))
    emulator.reset_game()
    new, dice = emulator.getRAM().tobytes(), random.Random(0)
    for frames in (50, 300):
        for _ in range(frames):
            if not emulator.game_over():
                emulator.act(dice.choice(emulator.getMinimalActionSet()))
        emulator.reset_game()
        if emulator.getRAM().tobytes() != new:
            return True
    return False


def test_only_games_whose_emulator_forgets_begin_without_a_seed() -> None:
    assert not [game for game in atari.FORGETS_EPISODES if remembers(game)]
    assert remembers("beam_rider")
    assert not Atari("asterix", 1).needs_seeds
    assert Atari("asterix", 1, noop_max=1).needs_seeds
    assert Atari("beam_rider", 1).needs_seeds


def test_an_emulator_that_answers_otherwise_is_noticed() -> None:
    env = atari.make(2, 4, "train", "breakout")
    played(env, 30)
    state = env.state_dict()
    state["observations"][0, -1, 40, 40] ^= 255
    assert not atari.make(2, 4, "train", "breakout").load_state_dict(state)


def test_stickiness_repeats_a_quarter_of_decisions() -> None:
    env = atari.make(4, 0, "train", "pong", sticky=0.25)
    env.begin()
    decided = torch.stack([actions for actions, _ in random_steps(env, 80)], dim=1)
    assert env.numbers == [1] * 4
    ignored = (decided != torch.tensor(env.executed)).float().mean().item()
    assert ignored == pytest.approx(0.25 * 5 / 6, abs=0.05)  # one in six repeats what was decided anyway


def test_classic_control_resumes_too() -> None:
    env = classic.make(3, 0, "train", "CartPole-v1")
    replay, seen = played(env, 70)
    again = classic.make(3, 0, "train", "CartPole-v1")
    assert again.load_state_dict(env.state_dict())
    same_steps(env, again, 60)
    batch = replay.sample(100, torch.Generator())
    observed = {stack.numpy().tobytes() for step in seen for stack in step}
    assert all(frames[:-1].numpy().tobytes() in observed for frames in batch.frames)
    assert find_game("BeamRider") == find_game("beam_rider") == "beam_rider"
