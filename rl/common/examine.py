"""Try a copy of an environment before the first step, and log what gymnasium's own `check_env` reports of it."""

import contextlib
import logging
import warnings
from typing import Any

from gymnasium.spaces import Space
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from harness.config.errors import ConfigError, TrainingError
from harness.process.signals import EXIT_PREEMPTED
from rl.common.environments import Environment, make_with_warnings
from rl.common.foreign_code import answering, error_text, in_same_folder, process_as_before, shown, warning_texts

log = logging.getLogger(__name__)

LONG_TIME_LIMIT = 100_000  # steps; a time limit above this is named in the log

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
    env, remarks = make_with_warnings(option, task, options)
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
