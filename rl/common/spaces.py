"""Which spaces of observations and actions the agents can use; others are refused in one line before the first step."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from harness.config.errors import ConfigError
from rl.common.foreign_code import error_text, shown

MAX_NUMBERS = 2**20  # largest number of numbers in an observation, and of actions: a layer has as many columns, or rows


def space_of(name: str, env: Any, attribute: str) -> Any:
    """Return a space of an environment.

    Raises:
        ConfigError: it has none, or one of another package, such as gym, gymnasium's predecessor.
    """
    try:
        space = getattr(env, attribute)
    except Exception as error:
        raise ConfigError(f"{name}: its {attribute} cannot be read ({error_text(error)})") from error
    if not isinstance(space, Space):
        kind = type(space)
        raise ConfigError(
            f"{name}: its {attribute} must be a space of gymnasium.spaces, not {shown(space)}, which is a "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    return space


def hint_of_atari(name: str) -> str:
    """Return how to play Atari here, if the name is that of gymnasium's environment of a game; else ""."""
    is_atari = "ALE/" in name or "NoFrameskip" in name
    return "; Atari is played by rl.dqn with env=asterix, and env.game=pong or another game" if is_atari else ""


def observation_size(name: str, space: Any) -> int:
    """Return how many numbers an observation has.

    Raises:
        ConfigError: observations are no vector of numbers.
    """
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ConfigError(
            f"{name}: observations must be a vector of numbers, not {shown(space)}; "
            f"gymnasium.wrappers.FlattenObservation makes one of most spaces{hint_of_atari(name)}"
        )
    (size,) = space.shape
    if not 1 <= size <= MAX_NUMBERS:
        raise ConfigError(f"{name}: observations must have 1 to {MAX_NUMBERS} numbers, not {size}")
    return int(size)


def check_discrete(name: str, space: Any) -> Discrete:
    """Return the space of actions if DQN can use it.

    Raises:
        ConfigError: DQN cannot use it.
    """
    if not isinstance(space, Discrete):
        raise ConfigError(f"{name}: DQN needs a task with discrete actions, Discrete(n), not {shown(space)}")
    if space.n > MAX_NUMBERS:
        raise ConfigError(f"{name}: DQN has an output for each action: at most {MAX_NUMBERS}, not {space.n}")
    last = int(space.start) + int(space.n) - 1
    if last > np.iinfo(space.dtype).max:
        raise ConfigError(f"{name}: the last action, {last}, is no number of the type {space.dtype} of {space}")
    return space


def check_continuous(name: str, space: Any) -> Box:
    """Return the space of actions if SAC can use it: it must have finite bounds, to which the policy's tanh is scaled.

    Raises:
        ConfigError: SAC cannot use it.
    """
    if not isinstance(space, Box) or space.dtype.kind != "f":
        raise ConfigError(f"{name}: SAC needs a task with continuous actions, a Box of floats, not {shown(space)}")
    if len(space.shape) != 1 or not 1 <= space.shape[0] <= MAX_NUMBERS:
        raise ConfigError(f"{name}: actions must be a vector of 1 to {MAX_NUMBERS} numbers, not {shown(space)}")
    low, high = bounds(space)
    with np.errstate(over="ignore"):
        width = high - low
    for number in range(len(low)):
        where = f"{name}: number {number} of an action is in [{low[number]}, {high[number]}]"
        if not np.isfinite(width[number]):
            raise ConfigError(
                f"{where}: SAC needs finite bounds; give the Box of the environment's actions a low and a high"
            )
        if width[number] < 0:
            raise ConfigError(f"{where}: its lowest value is above its highest")
        if width[number] == 0:
            raise ConfigError(f"{where}: it cannot be chosen, and would count in the policy's entropy: leave it out")
    return space


def bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest actions, in float32 or more, so that their difference is precise enough."""
    dtype = np.promote_types(space.dtype, np.float32)
    return space.low.astype(dtype), space.high.astype(dtype)
