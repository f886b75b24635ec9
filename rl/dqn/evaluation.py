"""Evaluate an agent by its raw returns in nearly greedy play."""

import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.training import seeding
from rl.dqn.episodes import Episodes
from rl.dqn.scores import human_normalised

log = logging.getLogger(__name__)
PATIENCE = 10_000  # turns after which an episode is given up if the environment states no time limit


@torch.inference_mode()
def play(
    policy: Callable[[Tensor], Tensor], env: Episodes, steps: int | None, epsilon: float, game: str
) -> dict[str, float]:
    """Play complete episodes and return the mean of their returns.

    Args:
        policy: observations (envs, stack, ...) -> best actions (envs,) on the CPU.
        env: newly made environments.
        steps: episodes count if they begin within so many agent steps, counted over all environments. They are played
            to their end, so that long ones count as much as short ones. None counts the first episode of each
            environment.
        epsilon: chance of a random action.
        game: name of the game whose human score is used.

    Returns:
        eval/return, the mean raw return of the episodes; eval/episodes, their number; and eval/normalized_return for
        games with a human score. The result is empty, with a line in the log, if one of the episodes does not end,
        because the mean of the others would be that of short episodes.
    """
    generator = seeding.generator(env.seed, env.purpose, "epsilon")
    env.begin()
    last_beginning = 1 if steps is None else -(-steps // env.envs)  # episodes count if they begin before this turn
    longest = last_beginning + (env.emulator.limit or PATIENCE)
    counts, returns, turns = [True] * env.envs, list[float](), 0  # whether the episode of each environment counts
    while any(counts) and turns < longest:
        explores = torch.rand(env.envs, generator=generator) < epsilon
        random_actions = torch.randint(env.emulator.actions, (env.envs,), generator=generator)
        env.send(torch.where(explores, random_actions, policy(env.observations)))
        step = env.recv()
        turns += 1
        for number, value in zip(step.ended.tolist(), step.returns, strict=True):
            if counts[number]:
                returns.append(value)
                counts[number] = turns < last_beginning
    if any(counts):
        log.warning(
            "no eval/return: %d of %d episodes did not end within %d steps; set a time limit, such as "
            "env.options={max_episode_steps:1000}",
            sum(counts), sum(counts) + len(returns), turns,
        )  # fmt: skip
        return {}
    mean = float(np.mean(returns))
    row = {"eval/return": mean, "eval/episodes": float(len(returns))}
    normalised = human_normalised(game, mean)
    return row if normalised is None else {**row, "eval/normalized_return": normalised}
