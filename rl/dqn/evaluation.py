"""Epsilon-greedy actions, and an agent's raw returns in nearly greedy play."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.training import seeding
from rl.dqn.episodes import Episodes
from rl.dqn.scores import human_normalised


def epsilon_greedy(greedy: Tensor, actions: int, epsilon: float, generator: torch.Generator, shared: bool) -> Tensor:
    """These actions (envs,), each replaced by a random one with probability epsilon.

    Args:
        greedy: the best actions.
        actions: how many there are.
        epsilon: exploration rate.
        generator: on the CPU.
        shared: one draw decides for all environments at once, as in the reference.
    """
    dice = torch.rand(1 if shared else len(greedy), generator=generator)
    return torch.where(dice < epsilon, torch.randint(actions, (len(greedy),), generator=generator), greedy)


@torch.inference_mode()
def play(policy: Callable[[Tensor], Tensor], env: Episodes, steps: int, epsilon: float, game: str) -> dict[str, float]:
    """Play for `steps` agent steps, counted over all environments.

    Args:
        policy: best actions (envs,) on the CPU for observations (envs, stack, ...).
        env: freshly made.
        steps: agent steps.
        epsilon: chance of a random action.
        game: whose table of human scores is used.

    Returns:
        eval/return: mean raw return of the episodes that ended (of those under way if none did), eval/episodes: their
        number, and eval/normalized_return for games with a human score.
    """
    generator = seeding.generator(env.seed, env.purpose, "epsilon")
    env.begin()
    returns: list[float] = []
    for _ in range(-(-steps // env.envs)):
        actions = epsilon_greedy(policy(env.observations), env.emulator.actions, epsilon, generator, False)
        env.send(actions)
        returns += env.recv().returns
    return row_of(game, float(np.mean(returns or env.returns)), len(returns))


@torch.inference_mode()
def play_episodes(policy: Callable[[Tensor], Tensor], env: Episodes, epsilon: float, game: str) -> dict[str, float]:
    """Play the first episode of each environment to its end, so that long ones count as short ones do.

    Args:
        policy: best actions (envs,) on the CPU for observations (envs, stack, ...).
        env: freshly made, with a time limit.
        epsilon: chance of a random action.
        game: whose table of human scores is used.

    Returns:
        As `play`; all episodes ended.
    """
    generator = seeding.generator(env.seed, env.purpose, "epsilon")
    env.begin()
    returns: dict[int, float] = {}
    while len(returns) < env.envs:
        env.send(epsilon_greedy(policy(env.observations), env.emulator.actions, epsilon, generator, False))
        step = env.recv()
        for number, value in zip(step.ended.tolist(), step.returns, strict=True):
            returns.setdefault(number, value)
    return row_of(game, float(np.mean(list(returns.values()))), len(returns))


def row_of(game: str, mean: float, episodes: int) -> dict[str, float]:
    """The numbers of an evaluation."""
    row = {"eval/return": mean, "eval/episodes": float(episodes)}
    normalised = human_normalised(game, mean)
    return row if normalised is None else {**row, "eval/normalized_return": normalised}
