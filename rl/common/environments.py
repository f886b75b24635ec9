"""Make gymnasium's environments and users' own for both agents, and report their faults.

A space that an agent cannot use is refused before the first step. An environment that raises, or returns what
gymnasium's interface does not allow, ends the run with one line that names it. One that does not answer is named in the
log. What gymnasium's own `check_env` reports is logged once.
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
import torch
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from harness.config.errors import ConfigError, TrainingError
from harness.process.signals import EXIT_PREEMPTED, asked_to_leave

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_NUMBERS = 2**20  # largest number of numbers in an observation, and of actions: a layer has as many columns, or rows
LONG_TIME_LIMIT = 100_000  # steps; a time limit above this is named in the log
MAX_SHOWN_CHARACTERS = 300  # of a space or of another package's text that are shown in a message
SECONDS_UNTIL_WARNING = 30.0  # after which an environment that does not answer is named in the log
SECONDS_AFTER_SIGNAL = (
    10.0  # seconds after a signal for which it may still answer, so that the step can be finished and saved
)
NUMBERS = "biuf"  # NumPy's kinds of numbers: truth values, signed and unsigned integers, floats
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # escape sequences that colour a terminal


# ------------------------------------------------------------------------------------------------ making an environment


def make_gymnasium(option: str, task: str, options: dict[str, Any]) -> Any:
    """Make an environment of gymnasium.

    Args:
        option: name of the option that names the task, for messages: env.game or env.task.
        task: gymnasium's id, `module:Name-v0` if a module of the user registers it.
        options: further arguments of `gymnasium.make`, such as `max_episode_steps`.

    Raises:
        ConfigError: it cannot be made; with gymnasium's message, or what the environment's code raised.
    """
    return _make(option, task, options)[0]


def _make(option: str, task: str, options: dict[str, Any]) -> tuple[Any, list[str]]:
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
            raise ConfigError(f"{name}: {error_text(error)}{_hint_of_atari(name)}") from error
    return env, warning_texts(caught)


@contextlib.contextmanager
def process_as_before(name: str) -> Iterator[None]:
    """Refuse an environment whose code changes the whole process; set the number of torch's threads back.

    Raises:
        ConfigError: gradients are off, new tensors have another dtype or device, or the current folder is another one
            after this block.
    """
    before, threads = _process_state(), torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:  # on which sums depend
        log.warning("%s: its code sets torch's threads to %d: set back", name, torch.get_num_threads())
        torch.set_num_threads(threads)
    for (what, old), (_, new) in zip(before.items(), _process_state().items(), strict=True):
        if old != new:
            raise ConfigError(
                f"{name}: its code changes {what} from {old} to {new} for the whole process, in which the agent could "
                "not learn or be saved: let it set this back (`with torch.no_grad():`, `with contextlib.chdir(...):`)"
            )


def _process_state() -> dict[str, object]:
    return {
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "the current folder": _current_folder(),
    }


def _current_folder() -> str:
    """Return the current folder; an empty text if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@contextlib.contextmanager
def in_same_folder(name: str) -> Iterator[None]:
    """Go back to the current folder if the code within this block leaves it, as the run's own paths may be relative."""
    folder = _current_folder()
    yield
    if folder and _current_folder() != folder:
        _say_that_it_leaves(name, _current_folder(), folder)
        os.chdir(folder)


@functools.cache
def _say_that_it_leaves(name: str, other: str, folder: str) -> None:
    """Log it once, as environments are made several times."""
    log.warning("%s: its code goes to the folder %s: back in %s", name, other, folder)


def without_drawing(function: Callable[[], T]) -> T:
    """Call a function that may import MuJoCo, if it fails once more with drawing turned off, and return its value.

    MuJoCo cannot be imported if MUJOCO_GL names an OpenGL that does not work on this machine, although training draws
    nothing. A warning says that drawing was turned off. An environment that draws its observations reports itself that
    it cannot.
    """
    try:
        return function()
    except Exception as error:
        opengl = os.environ.get("MUJOCO_GL")
        if opengl is None:
            raise
        with _set_environment("MUJOCO_GL", "disable"):
            value = function()  # raises again if something else was the cause
        log.warning("MUJOCO_GL=%s does not work here (%s): MuJoCo runs without drawing", opengl, error_text(error))
        return value


@contextlib.contextmanager
def _set_environment(key: str, value: str) -> Iterator[None]:
    """Set an environment variable, which must exist, within this block."""
    old_value = os.environ[key]
    os.environ[key] = value
    try:
        yield
    finally:
        os.environ[key] = old_value


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


# --------------------------------------------------------------------------------------------------------- their spaces


def _space_of(name: str, env: Any, attribute: str) -> Any:
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


def _hint_of_atari(name: str) -> str:
    """Return where Atari is played, for the name of an environment that is gymnasium's of a game; else ""."""
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
            f"gymnasium.wrappers.FlattenObservation makes one of most spaces{_hint_of_atari(name)}"
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


# -------------------------------------------------------------------------------------------------- one that is stepped


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
        self.action_space: Space[Any] = _space_of(name, env, "action_space")
        self.size, self.limit = observation_size(name, _space_of(name, env, "observation_space")), time_limit(env)
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
            closing = threading.Thread(target=close, daemon=True, name=f"close {self.name}")
            closing.start()
            closing.join(SECONDS_UNTIL_WARNING)
            if closing.is_alive():
                log.warning("%s has not closed within %.0f s: it is left open", self.name, SECONDS_UNTIL_WARNING)
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


# --------------------------------------------------------------------------------------------- before the first step

Interface = tuple[int, Space[Any]]  # numbers in an observation, space of actions
_examined: dict[str, Interface] = {}  # of the copies that were tried, by how they were made


def examine(environment: Environment, option: str, task: str, options: dict[str, Any], action: Any) -> None:
    """Try a copy of an environment before the first step, and log what gymnasium's `check_env` reports of it.

    A copy is tried once in a process; each environment must have its spaces, as one agent acts in all of them.
    `check_env` is left out for gymnasium's own environments.

    Args:
        environment: the environment, made with the next three arguments.
        option: see `make_gymnasium`.
        task: see `make_gymnasium`.
        options: see `make_gymnasium`.
        action: an action that the environment accepts.

    Raises:
        ConfigError: the environment raises, does not return what its spaces say, or has other spaces each time.
    """
    key = repr((option, task, options))
    interface = environment.size, environment.action_space
    if key not in _examined:
        _examined[key] = _try_copy(option, task, options, interface, action)
    _check_same(environment.name, interface, _examined[key])


def _check_same(name: str, interface: Interface, other: Interface) -> None:
    """Raise a ConfigError if two environments of one task have different spaces."""
    for quantity, expected, other_value in zip(("numbers in an observation", "actions"), interface, other, strict=True):
        if expected != other_value:
            raise ConfigError(
                f"{name}: two environments of this task have different {quantity}, {shown(expected)} and "
                f"{shown(other_value)}, and one agent acts in both: make its spaces the same each time"
            )


def _try_copy(option: str, task: str, options: dict[str, Any], interface: Interface, action: Any) -> Interface:
    """Make, try and close a copy of an environment, and return its interface; see `examine`."""
    name = f"{option}={task}"
    env, remarks = _make(option, task, options)
    copy = Environment(name, env)
    with contextlib.closing(copy), process_as_before(name):
        _check_same(name, interface, (copy.size, copy.action_space))
        try:
            copy.reset(seed=0)
            copy.step(action)
            copy.reset(seed=1)
        except TrainingError as error:
            raise ConfigError(str(error)) from error.__cause__
        if not type(env.unwrapped).__module__.startswith("gymnasium."):
            remarks += check(name, env)
    if copy.limit is not None and copy.limit > LONG_TIME_LIMIT:
        log.warning(
            "%s: an episode may take %d steps, and evaluations play whole episodes: a lower limit would be "
            "env.options={max_episode_steps:1000}",
            name, copy.limit,
        )  # fmt: skip
    if copy.masks_actions:
        log.warning("%s: its action_mask is not followed: illegal actions are taken, and learnt from, too", name)
    if remarks:
        log.warning("%s: gymnasium says: %s", name, "; ".join(dict.fromkeys(remarks)))
    return copy.size, copy.action_space


def check(name: str, env: Any) -> list[str]:
    """Return the warnings of gymnasium's `check_env` for an environment, and the error that it ends with, if any."""
    while isinstance(env, TimeLimit | OrderEnforcing | PassiveEnvChecker):  # the wrappers of gymnasium.make
        env = env.env
    errors = list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with answering(name, "is being checked by gymnasium's check_env"), in_same_folder(name):
                check_env(env, skip_render_check=True)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code == EXIT_PREEMPTED:
                raise
            errors = [f"check_env fails: {error_text(error)}"]
    # An environment that is registered with wrappers of its own is checked with them, as the agent uses it.
    return [text for text in warning_texts(caught) if "different from the unwrapped version" not in text] + errors


def warning_texts(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return the texts of warnings, each on one line."""
    return [condensed(COLOURS.sub("", str(warning.message)).removeprefix("WARN: ")) for warning in caught]


def error_text(error: BaseException) -> str:
    """Return an error of another package's code on one line, with its type unless the text is clear without it."""
    text = condensed(COLOURS.sub("", str(error)))
    if isinstance(error, gymnasium.error.Error | ImportError | ConfigError | TrainingError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: Any) -> str:
    """Return a space or a value as text on one line."""
    return condensed(str(value) if isinstance(value, Space) else repr(value))


def condensed(text: str) -> str:
    """Return a text on one line, cut after `MAX_SHOWN_CHARACTERS` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]} ..."


# --------------------------------------------------------------------------------------------- one that does not answer

# For each thread that waits for an environment: since when (seconds), the environment's name, what it does.
_waiting: dict[int, tuple[float, str, str]] = {}


@contextlib.contextmanager
def answering(name: str, what: str) -> Iterator[None]:
    """Name an environment in the log if the call within this block takes long.

    The run goes on waiting for it, as some are slow; but `SECONDS_AFTER_SIGNAL` after a signal the process ends.
    """
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
    """Look every second for environments that do not answer, for as long as the process lives."""
    named = set[tuple[float, str, str]]()
    while True:
        time.sleep(min(1.0, SECONDS_UNTIL_WARNING))
        asked = asked_to_leave()
        for call in list(_waiting.values()):
            since, name, what = call
            if asked is not None and time.monotonic() - max(asked, since) > SECONDS_AFTER_SIGNAL:
                log.warning(
                    "%s has not answered for %.0f s (%s) after a signal: the process leaves without a checkpoint; the "
                    "same command resumes from the last one",
                    name, SECONDS_AFTER_SIGNAL, what,
                )  # fmt: skip
                os._exit(EXIT_PREEMPTED)  # no exception reaches what hangs in somebody else's code, or in a thread
            if call not in named and time.monotonic() - since > SECONDS_UNTIL_WARNING:
                named.add(call)
                log.warning(
                    "%s has not answered for %.0f s (%s); the run waits for it. If it hangs, end the run: the same "
                    "command resumes from the last checkpoint",
                    name, SECONDS_UNTIL_WARNING, what,
                )  # fmt: skip
