"""An agent's raw returns in nearly greedy play."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.training import seeding
from rl.dqn.episodes import Episodes
from rl.dqn.scores import human_normalised


@torch.inference_mode()
def play(
    policy: Callable[[Tensor], Tensor], env: Episodes, steps: int | None, epsilon: float, game: str
) -> dict[str, float]:
    """Play, and take the mean over episodes.

    Args:
        policy: best actions (envs,) on the CPU for observations (envs, stack, ...).
        env: freshly made.
        steps: agent steps, counted over all environments: what counts are the episodes that end within these, and if
            none does those under way. None: the first episode of each environment, so that long ones count as short
            ones do.
        epsilon: chance of a random action.
        game: whose table of human scores is used.

    Returns:
        eval/return: mean raw return, eval/episodes: that ended, and eval/normalized_return for games with a human
        score.
    """
    generator = seeding.generator(env.seed, env.purpose, "epsilon")
    env.begin()
    turns, ended, first = 0, list[float](), dict[int, float]()
    while len(first) < env.envs if steps is None else turns * env.envs < steps:
        explores = torch.rand(env.envs, generator=generator) < epsilon
        random_actions = torch.randint(env.emulator.actions, (env.envs,), generator=generator)
        env.send(torch.where(explores, random_actions, policy(env.observations)))
        step = env.recv()
        turns += 1
        ended += step.returns
        for number, value in zip(step.ended.tolist(), step.returns, strict=True):
            first.setdefault(number, value)
    returns = list(first.values()) if steps is None else ended
    mean = float(np.mean(returns or env.returns))
    row = {"eval/return": mean, "eval/episodes": float(len(returns))}
    normalised = human_normalised(game, mean)
    return row if normalised is None else {**row, "eval/normalized_return": normalised}
