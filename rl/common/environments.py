"""Make gymnasium's environments and users' own for both agents, step them, and report their faults.

An environment that raises, or returns what gymnasium's interface does not allow, ends the run with one line that names
it.
"""

import logging
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.wrappers import TimeLimit

from harness.config.errors import ConfigError, TrainingError
from harness.process.signals import EXIT_PREEMPTED
from rl.common import foreign_code
from rl.common.foreign_code import (
    answering,
    error_text,
    in_same_folder,
    process_as_before,
    shown,
    warning_texts,
    without_drawing,
)
from rl.common.spaces import hint_of_atari, observation_size, space_of

log = logging.getLogger(__name__)
T = TypeVar("T")

NUMBERS = "biuf"  # NumPy's kinds of numbers: truth values, signed and unsigned integers, floats


def make_gymnasium(option: str, task: str, options: dict[str, Any]) -> Any:
    """Make an environment of gymnasium.

    Args:
        option: name of the option that names the task, for messages: env.game or env.task.
        task: gymnasium's id, `module:Name-v0` if a module of the user registers it.
        options: further arguments of `gymnasium.make`, such as `max_episode_steps`.

    Raises:
        ConfigError: it cannot be made; with gymnasium's message, or what the environment's code raised.
    """
    return make_with_warnings(option, task, options)[0]


def make_with_warnings(option: str, task: str, options: dict[str, Any]) -> tuple[Any, list[str]]:
    """Make an environment; return it and the texts of warnings on the way (of an old version, for example)."""
    name = f"{option}={task}"
    with process_as_before(name), in_same_folder(name), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with answering(name, "is being made"):
                env = without_drawing(lambda: gymnasium.make(task, disable_env_checker=True, **options))
        except SystemExit as error:  # of a licence that is missing, or of a script that runs as it is imported
            if error.code == EXIT_PREEMPTED:  # this program's own: a signal came meanwhile
                raise
            raise ConfigError(f"{name}: its code called exit({error.code!r}) while it was being made") from error
        except Exception as error:
            raise ConfigError(f"{name}: {error_text(error)}{hint_of_atari(name)}") from error
    return env, warning_texts(caught)


def time_limit(env: Any) -> int | None:
    """Return the steps after which an episode is truncated; None if the environment does not say.

    An environment says so where it is registered, or by a wrapper `TimeLimit`; of several limits the smallest counts.
    """
    spec = getattr(env, "spec", None)
    limits = [spec.max_episode_steps if spec is not None else getattr(env, "max_steps", None)]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min((int(limit) for limit in limits if limit and limit > 0), default=None)


class Environment:
    """An environment whose faults become errors of one line that names it.

    Args:
        name: the option and the task, for messages.
        env: an environment with gymnasium's `reset(seed=)` and `step`.

    Attributes:
        size: numbers in an observation.
        limit: steps after which an episode is truncated; None if the environment does not say.
        masks_actions: whether a `reset` has returned an `action_mask`, which says what actions are legal at present.

    Raises:
        ConfigError: observations are no vector of numbers.
    """

    def __init__(self, name: str, env: Any) -> None:
        self.name, self.env = name, env
        self.action_space: Space[Any] = space_of(name, env, "action_space")
        self.size, self.limit = observation_size(name, space_of(name, env, "observation_space")), time_limit(env)
        self._seed, self._steps = 0, 0  # of the episode
        self.masks_actions = False

    @property
    def action_size(self) -> int:
        """How many numbers an action has; 1 if it is a single number."""
        return math.prod(self.action_space.shape or ())

    def reset(self, seed: int) -> np.ndarray:
        """Begin an episode and return a copy of its first observation, (size,) float32.

        Raises:
            TrainingError: the environment raised, or returned something else.
        """
        self._seed, self._steps = seed, 0
        result = self._call("reset", lambda: self.env.reset(seed=seed))
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._fault(f"reset returned {shown(result)}, not (observation, info)")
        self.masks_actions |= isinstance(result[1], dict) and "action_mask" in result[1]
        return self._checked_observation("reset", result[0])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Make a step.

        Returns:
            A copy of the next observation, (size,) float32; the reward; whether the episode has terminated; whether it
            was truncated.

        Raises:
            TrainingError: the environment raised, or returned something else.
        """
        result = self._call("step", lambda: self.env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            count = f"{len(result)} values" if isinstance(result, tuple) else shown(result)
            raise self._fault(f"step returned {count}, not (observation, reward, terminated, truncated, info)")
        self._steps += 1
        observation, reward, terminated, truncated, _ = result
        checked = self._checked_observation("step", observation)
        return (
            checked,
            self._checked_reward(reward),
            self._checked_flag("terminated", terminated),
            self._checked_flag("truncated", truncated),
        )

    def close(self) -> None:
        """Close the environment. If it raises, that is logged, and the run goes on; if it hangs, it is left open."""
        errors = list[Exception]()

        def close() -> None:
            try:
                self.env.close()
            except Exception as error:
                errors.append(error)

        if getattr(self.env, "render_mode", None) is not None:  # OpenGL's contexts belong to the thread that made them
            close()
        else:  # in a thread, which can be left: what was trained is saved, and the run should come to its end
            patience = foreign_code.SECONDS_UNTIL_WARNING
            closing = threading.Thread(target=close, daemon=True, name=f"close {self.name}")
            closing.start()
            closing.join(patience)
            if closing.is_alive():
                log.warning("%s has not closed within %.0f s: it is left open", self.name, patience)
        for error in errors:
            log.warning("%s: close raised %s", self.name, error_text(error))

    def _call(self, method: str, function: Callable[[], T]) -> T:
        """Call a method of the environment and return its value; raise a TrainingError if it raises."""
        try:
            with answering(self.name, method):
                return function()
        except SystemExit as error:
            if error.code == EXIT_PREEMPTED:  # this program's own: a signal came meanwhile
                raise
            raise self._fault(f"{method} called exit({error.code})") from error
        except Exception as error:
            raise self._fault(f"{method} raised {error_text(error)}") from error

    def _checked_observation(self, method: str, observation: Any) -> np.ndarray:
        """Return a float32 copy of an observation, as some environments return the same array at each step."""
        values = self._array(f"{method} returned the observation", observation)
        if values.dtype.kind not in NUMBERS:
            raise self._fault(f"{method} returned the observation {shown(observation)}, which is no array of numbers")
        if values.shape != (self.size,):
            raise self._fault(
                f"{method} returned an observation of shape {values.shape}, and observation_space says {(self.size,)}"
            )
        with np.errstate(over="ignore"):
            converted: np.ndarray = values.astype(np.float32)
        if not np.isfinite(converted).all():
            number = int(np.argmin(np.isfinite(converted)))
            raise self._fault(f"{method} returned an observation whose number {number} is {values[number]}")
        return converted

    def _array(self, what: str, value: Any) -> np.ndarray:
        """Return a value as an array; `what` begins the message if it cannot be one."""
        try:
            return np.asarray(value)
        except Exception as error:  # lists of different lengths, tensors with a gradient or on a GPU, objects
            raise self._fault(f"{what} {shown(value)}, which is no array ({error_text(error)})") from error

    def _checked_reward(self, reward: Any) -> float:
        values = self._array("step returned the reward", reward)
        if values.size != 1 or values.dtype.kind not in NUMBERS:
            raise self._fault(f"step returned the reward {shown(reward)}, which is no number")
        value = float(values.reshape(()))
        if not abs(value) <= np.finfo(np.float32).max:  # this refuses NaN too
            raise self._fault(f"step returned the reward {value}")
        return value

    def _checked_flag(self, name: str, flag: Any) -> bool:
        values = self._array(f"step returned {name}", flag)
        if values.size != 1 or values.dtype.kind not in "biu":
            raise self._fault(f"step returned {name}={shown(flag)}, which is neither true nor false")
        return bool(values.reshape(()))

    def _fault(self, fault: str) -> TrainingError:
        """Return an error that says what the environment did, and when."""
        where = f"after {self._steps} steps of the episode with seed {self._seed}"
        return TrainingError(f"{self.name}: {fault} ({where})")
