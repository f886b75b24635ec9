"""Small environments as users write them, right and wrong, which tests register by a name of their own."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

VECTOR = Box(-1, 1, (3,), np.float32)
ACTIONS: dict[str, Space[Any]] = {"dqn": Discrete(3), "sac": Box(-1, 1, (2,), np.float32)}
_number = itertools.count()


class Own(gymnasium.Env[Any, Any]):
    """Gives a reward of 1 a step, and by default terminates after 20 steps.

    Args:
        actions: space of actions.
        observations: space of observations.
        show: what an observation is after so many steps; None: a sample of the space.
        after: what `step` returns, given what it would return and the number of steps; None: the same.
        length: steps of an episode; None: it does not end by itself.

    Attributes:
        sent: the actions that it got.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        actions: Space[Any],
        observations: Space[Any] = VECTOR,
        show: Callable[[int], Any] | None = None,
        after: Callable[[tuple[Any, ...], int], Any] | None = None,
        length: int | None = 20,
    ) -> None:
        self.action_space = actions
        self.observation_space = copy.deepcopy(observations)  # with a random state of this environment alone
        self.show, self.after, self.length = show, after, length
        self.sent: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.show is None:
            self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.sent.append(copy.copy(action))
        self.steps += 1
        result = self._shown(), 1.0, self.steps == self.length, False, {}
        return result if self.after is None else self.after(result, self.steps)

    def _shown(self) -> Any:
        return self.observation_space.sample() if self.show is None else self.show(self.steps)


def register(make: Callable[..., Any], limit: int | None = None) -> str:
    """A new id for what makes an environment, with a time limit or without."""
    name = f"Own{next(_number)}-v0"
    gymnasium.register(name, make, max_episode_steps=limit)
    return name
