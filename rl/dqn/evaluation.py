"""An agent's raw returns in nearly greedy play."""

import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.training import seeding
from rl.dqn.episodes import Episodes
from rl.dqn.scores import human_normalised

log = logging.getLogger(__name__)
PATIENCE = 10_000  # turns for which an episode is played where the environment states no time limit


@torch.inference_mode()
def play(
    policy: Callable[[Tensor], Tensor], env: Episodes, steps: int | None, epsilon: float, game: str
) -> dict[str, float]:
    """Play whole episodes, and take the mean of their returns.

    Args:
        policy: best actions (envs,) on the CPU for observations (envs, stack, ...).
        env: freshly made.
        steps: agent steps, counted over all environments, within which episodes begin that count. They are played to
            their end, so that a long one counts as a short one does. None: the first episode of each environment.
        epsilon: chance of a random action.
        game: whose table of human scores is used.

    Returns:
        eval/return: mean raw return of the episodes, eval/episodes: their number, and eval/normalized_return for games
        with a human score. Nothing, and a line in the log, where one of them does not end: the mean of the others would
        be that of short episodes.
    """
    generator = seeding.generator(env.seed, env.purpose, "epsilon")
    env.begin()
    beginnings = 1 if steps is None else -(-steps // env.envs)  # turns before which episodes begin that count
    longest = beginnings + (env.emulator.limit or PATIENCE)
    counts, returns, turns = [True] * env.envs, list[float](), 0  # whether an environment's episode counts
    while any(counts) and turns < longest:
        explores = torch.rand(env.envs, generator=generator) < epsilon
        random_actions = torch.randint(env.emulator.actions, (env.envs,), generator=generator)
        env.send(torch.where(explores, random_actions, policy(env.observations)))
        step = env.recv()
        turns += 1
        for number, value in zip(step.ended.tolist(), step.returns, strict=True):
            if counts[number]:
                returns.append(value)
                counts[number] = turns < beginnings
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
