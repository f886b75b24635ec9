"""Environments of gymnasium, a user's own too, as both agents take them.

A space that an agent cannot use is refused before the first step. An environment that raises, or returns what
gymnasium's interface does not allow, ends the run in one line that names it; one that does not answer is named in the
log. What gymnasium's own `check_env` finds is logged once.
"""

import contextlib
import functools
import logging
import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from harness.config.errors import ConfigError, TrainingError
from harness.training.signals import EXIT_PREEMPTED, asked_to_leave

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST = 2**20  # numbers in an observation, and actions: a layer of a network has as many columns, or rows
LONGEST = 300  # letters of a space or of what somebody else's code says, in a line of ours
SILENCE = 30.0  # seconds after which an environment that does not answer is named
HANGS = 10.0  # seconds after a signal for which it may still answer, so that the step can be finished and saved
NUMBERS = "biuf"  # kinds of NumPy's types: truth values, integers with and without sign, floats
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


# ------------------------------------------------------------------------------------------------ making an environment


def make_gymnasium(option: str, task: str, options: dict[str, Any]) -> Any:
    """A new environment of gymnasium.

    Args:
        option: that names the task, for messages: env.game or env.task.
        task: gymnasium's id, `module:Name-v0` where a module of the user's registers it.
        options: further arguments of `gymnasium.make`, such as `max_episode_steps`.

    Raises:
        ConfigError: it cannot be made; the line is gymnasium's own, or says what the environment's code raised.
    """
    return _make(option, task, options)[0]


def _make(option: str, task: str, options: dict[str, Any]) -> tuple[Any, list[str]]:
    """The environment, and what was warned of while it was made (an old version, say)."""
    name = f"{option}={task}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with answering(name, "is being made"):
                env = without_drawing(lambda: gymnasium.make(task, disable_env_checker=True, **options))
        except Exception as error:
            raise ConfigError(f"{name}: {said(error)}") from error
    return env, warned(caught)


def without_drawing(function: Callable[[], T]) -> T:
    """What a function returns that may import MuJoCo, also where MUJOCO_GL names an OpenGL that does not work here.

    MuJoCo then cannot be imported, though training draws nothing. It is imported with drawing turned off, and one line
    says so. An environment that draws its observations then says itself that it cannot.
    """
    try:
        return function()
    except Exception as error:
        asked = os.environ.get("MUJOCO_GL")
        if asked is None:
            raise
        with _set_environment("MUJOCO_GL", "disable"):
            value = function()  # raises again where the cause is another
        log.warning("MUJOCO_GL=%s does not work here (%s): MuJoCo runs without drawing", asked, said(error))
        return value


@contextlib.contextmanager
def _set_environment(key: str, value: str) -> Iterator[None]:
    before = os.environ[key]
    os.environ[key] = value
    try:
        yield
    finally:
        os.environ[key] = before


def time_limit(env: Any) -> int | None:
    """Steps after which an episode is truncated; None: the environment states no limit."""
    spec = getattr(env, "spec", None)
    limit = spec.max_episode_steps if spec is not None else getattr(env, "max_steps", None)
    return int(limit) if limit and limit > 0 else None


# --------------------------------------------------------------------------------------------------------- their spaces


def observation_size(name: str, space: Any) -> int:
    """How many numbers an observation has.

    Raises:
        ConfigError: observations are no vector of numbers.
    """
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ConfigError(
            f"{name}: observations must be a vector of numbers, not {shown(space)}; "
            "gymnasium.wrappers.FlattenObservation makes one of most spaces"
        )
    (size,) = space.shape
    if not 1 <= size <= MOST:
        raise ConfigError(f"{name}: observations must have 1 to {MOST} numbers, not {size}")
    return int(size)


def check_discrete(name: str, space: Any) -> Discrete:
    """The space of actions, if DQN can use it.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(space, Discrete):
        raise ConfigError(f"{name}: DQN needs a task with discrete actions, Discrete(n), not {shown(space)}")
    if space.n > MOST:
        raise ConfigError(f"{name}: DQN has an output for each action: at most {MOST}, not {space.n}")
    last = int(space.start) + int(space.n) - 1
    if last > np.iinfo(space.dtype).max:
        raise ConfigError(f"{name}: the last action, {last}, is no number of the type {space.dtype} of {space}")
    return space


def check_continuous(name: str, space: Any) -> Box:
    """The space of actions, if SAC can use it: a policy's tanh is stretched to finite bounds.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(space, Box) or space.dtype.kind != "f":
        raise ConfigError(f"{name}: SAC needs a task with continuous actions, a Box of floats, not {shown(space)}")
    if len(space.shape) != 1 or not 1 <= space.shape[0] <= MOST:
        raise ConfigError(f"{name}: actions must be a vector of 1 to {MOST} numbers, not {shown(space)}")
    low, high = bounds(space)
    with np.errstate(over="ignore"):
        width = high - low
    for number in range(len(low)):
        where = f"{name}: number {number} of an action is in [{low[number]}, {high[number]}]"
        if not np.isfinite(width[number]):
            raise ConfigError(
                f"{where}: SAC needs finite bounds; give the Box of the environment's actions a low and a high"
            )
        if width[number] == 0:
            raise ConfigError(f"{where}: it cannot be chosen, and would count in the policy's entropy: leave it out")
    return space


def bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest actions, in float32 at least, so that their difference is computed in no smaller type."""
    dtype = np.promote_types(space.dtype, np.float32)
    return space.low.astype(dtype), space.high.astype(dtype)


# -------------------------------------------------------------------------------------------------- one that is stepped


class Environment:
    """An environment whose faults are one line that names it.

    Args:
        name: the option and the task, for messages.
        env: with gymnasium's `reset(seed=)` and `step`.

    Attributes:
        size: numbers in an observation.
        limit: steps after which an episode is truncated; None: none is stated.

    Raises:
        ConfigError: its observations are no vector of numbers.
    """

    def __init__(self, name: str, env: Any) -> None:
        self.name, self.env = name, env
        self.action_space: Space[Any] = env.action_space
        self.size, self.limit = observation_size(name, env.observation_space), time_limit(env)
        self._seed, self._steps = 0, 0  # of the episode

    @property
    def action_size(self) -> int:
        """How many numbers an action has, 1 where it is one number."""
        return math.prod(self.action_space.shape or ())

    def reset(self, seed: int) -> np.ndarray:
        """Begin an episode; its first observation, (size,) float32, a copy.

        Raises:
            TrainingError: the environment raised, or returned something else.
        """
        self._seed, self._steps = seed, 0
        result = self._call("reset", lambda: self.env.reset(seed=seed))
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._fault(f"reset returned {shown(result)}, not (observation, info)")
        return self._observation("reset", result[0])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Act: the next observation (size,) float32, a copy, the reward, and whether the episode terminated, or was
        truncated.

        Raises:
            TrainingError: the environment raised, or returned something else.
        """
        result = self._call("step", lambda: self.env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            count = f"{len(result)} values" if isinstance(result, tuple) else shown(result)
            raise self._fault(f"step returned {count}, not (observation, reward, terminated, truncated, info)")
        self._steps += 1
        observation, reward, terminated, truncated, _ = result
        seen = self._observation("step", observation)
        return seen, self._reward(reward), self._flag("terminated", terminated), self._flag("truncated", truncated)

    def close(self) -> None:
        """Close it. What it raises then is logged, and ends nothing; one that hangs then is left open."""
        raised = list[Exception]()

        def close() -> None:
            try:
                self.env.close()
            except Exception as error:
                raised.append(error)

        if getattr(self.env, "render_mode", None) is not None:  # OpenGL's things belong to the thread that made them
            close()
        else:  # in a thread, which can be left: what was trained is saved, and the run should come to its end
            closing = threading.Thread(target=close, daemon=True, name=f"close {self.name}")
            closing.start()
            closing.join(SILENCE)
            if closing.is_alive():
                log.warning("%s has not closed within %.0f s: it is left open", self.name, SILENCE)
        for error in raised:
            log.warning("%s: close raised %s", self.name, said(error))

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """What a method of the environment returns."""
        try:
            with answering(self.name, what):
                return function()
        except SystemExit as error:
            if error.code == EXIT_PREEMPTED:  # ours: a signal came meanwhile
                raise
            raise self._fault(f"{what} called exit({error.code})") from error
        except Exception as error:
            raise self._fault(f"{what} raised {said(error)}") from error

    def _observation(self, what: str, observation: Any) -> np.ndarray:
        """As float32, in memory of its own: some environments return the same array again and again."""
        try:
            values = np.asarray(observation)
        except ValueError:  # lists of different lengths
            raise self._fault(f"{what} returned the observation {shown(observation)}, which is no array") from None
        if values.dtype.kind not in NUMBERS:
            raise self._fault(f"{what} returned the observation {shown(observation)}, which is no array of numbers")
        if values.shape != (self.size,):
            raise self._fault(
                f"{what} returned an observation of shape {values.shape}, and observation_space says {(self.size,)}"
            )
        with np.errstate(over="ignore"):
            seen: np.ndarray = values.astype(np.float32)
        if not np.isfinite(seen).all():
            number = int(np.argmin(np.isfinite(seen)))
            raise self._fault(f"{what} returned an observation whose number {number} is {values[number]}")
        return seen

    def _reward(self, reward: Any) -> float:
        values = np.asarray(reward)
        if values.size != 1 or values.dtype.kind not in NUMBERS:
            raise self._fault(f"step returned the reward {shown(reward)}, which is no number")
        value = float(values.reshape(()))
        if not abs(value) <= np.finfo(np.float32).max:  # NaN too
            raise self._fault(f"step returned the reward {value}")
        return value

    def _flag(self, what: str, flag: Any) -> bool:
        values = np.asarray(flag)
        if values.size != 1 or values.dtype.kind not in "biu":
            raise self._fault(f"step returned {what}={shown(flag)}, which is neither true nor false")
        return bool(values.reshape(()))

    def _fault(self, what: str) -> TrainingError:
        where = f"after {self._steps} steps of the episode with seed {self._seed}"
        return TrainingError(f"{self.name}: {what} ({where})")


# --------------------------------------------------------------------------------------------- before the first step

_examined: set[str] = set()


def examine(option: str, task: str, options: dict[str, Any], action: Any) -> None:
    """Try a copy of an environment before the first step; gymnasium's own check of it is logged, in one line.

    Each environment is examined once in a process. Gymnasium's own environments are not checked again.

    Args:
        option: as for `make_gymnasium`.
        task: likewise.
        options: likewise.
        action: one that the environment accepts.

    Raises:
        ConfigError: it does not return what its spaces say, or raises.
    """
    key = repr((option, task, options))
    if key in _examined:
        return
    name = f"{option}={task}"
    env, remarks = _make(option, task, options)
    copy = Environment(name, env)
    with contextlib.closing(copy):
        try:
            copy.reset(seed=0)
            copy.step(action)
            copy.reset(seed=1)
        except TrainingError as error:
            raise ConfigError(str(error)) from error.__cause__
        if not type(env.unwrapped).__module__.startswith("gymnasium."):
            remarks += check(name, env)
    if remarks:
        log.warning("%s: gymnasium says: %s", name, "; ".join(dict.fromkeys(remarks)))
    _examined.add(key)


def check(name: str, env: Any) -> list[str]:
    """What gymnasium's `check_env` says of an environment: its warnings, then what it ended with."""
    while isinstance(env, TimeLimit | OrderEnforcing | PassiveEnvChecker):  # what gymnasium.make puts around it
        env = env.env
    error = list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with answering(name, "is being checked by gymnasium's check_env"):
                check_env(env, skip_render_check=True)
        except (Exception, SystemExit) as ended:
            if isinstance(ended, SystemExit) and ended.code == EXIT_PREEMPTED:
                raise
            error = [f"check_env fails: {said(ended)}"]
    # An environment that is registered with wrappers of its own is checked as the agent sees it.
    return [text for text in warned(caught) if "different from the unwrapped version" not in text] + error


def warned(caught: list[warnings.WarningMessage]) -> list[str]:
    """The warnings' texts, each on one line."""
    return [condensed(COLOURS.sub("", str(one.message)).removeprefix("WARN: ")) for one in caught]


def said(error: BaseException) -> str:
    """What an error of somebody else's code says, on one line; its type too, unless the text says enough."""
    text = condensed(COLOURS.sub("", str(error)))
    if isinstance(error, gymnasium.error.Error | ImportError | ConfigError | TrainingError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: Any) -> str:
    """A space or a value, on one line."""
    return condensed(str(value) if isinstance(value, Space) else repr(value))


def condensed(text: str) -> str:
    """The text on one line, cut where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


# --------------------------------------------------------------------------------------------- one that does not answer

_waiting: dict[int, tuple[float, str, str]] = {}  # thread -> since when, and for what it waits


@contextlib.contextmanager
def answering(name: str, what: str) -> Iterator[None]:
    """Around a call of an environment: if it takes long, a line names it. The run waits, as some are slow; after a
    signal it does not."""
    _start_watch()
    thread = threading.get_ident()
    _waiting[thread] = (time.monotonic(), name, what)
    try:
        yield
    finally:
        _waiting.pop(thread, None)


@functools.cache
def _start_watch() -> None:
    threading.Thread(target=_watch, name="environments that do not answer", daemon=True).start()


def _watch() -> None:
    named = set[tuple[float, str, str]]()
    while True:
        time.sleep(min(1.0, SILENCE))
        asked = asked_to_leave()
        for call in list(_waiting.values()):
            since, name, what = call
            if asked is not None and time.monotonic() - max(asked, since) > HANGS:
                log.warning(
                    "%s has not answered for %.0f s (%s) after a signal: the process leaves without a checkpoint; the "
                    "same command resumes from the last one",
                    name, HANGS, what,
                )  # fmt: skip
                os._exit(EXIT_PREEMPTED)  # no exception reaches what hangs in somebody else's code, or in a thread
            if call not in named and time.monotonic() - since > SILENCE:
                named.add(call)
                log.warning(
                    "%s has not answered for %.0f s (%s); the run waits for it. If it hangs, end the run: the same "
                    "command resumes from the last checkpoint",
                    name, SILENCE, what,
                )  # fmt: skip
