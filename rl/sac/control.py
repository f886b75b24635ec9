"""Continuous control in MuJoCo: Gymnasium, DeepMind Control and HumanoidBench behind one interface.

An episode is a function of its seed and its actions, so a checkpoint keeps these: on resume the episode is replayed,
in a second or less, and all state of MuJoCo, the wrappers and the task is as before, also state that cannot be read.
"""

import importlib
import math
import os
import warnings
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from fire_core.ranges import check_arguments, one_of, within
from harness.config.errors import ConfigError, first_line
from rl.common.environments import Environment, make_gymnasium
from rl.common.examine import examine
from rl.common.foreign_code import without_drawing
from rl.common.spaces import bounds, check_continuous

BENCH = (
    "HumanoidBench is not on the package index and works with mujoco 3.1.6, not with 3.2 or later: "
    'pip install "mujoco==3.1.6" "dm_control==1.0.20" "numpy<2" jax flax, then git clone '
    "https://github.com/carlosferrazza/humanoid-bench, pip install --no-deps -e humanoid-bench (its dependencies would "
    "bring an old torch; without -e a part of it is not installed), and set MUJOCO_GL=egl (which needs libegl1) or "
    "MUJOCO_GL=osmesa (libosmesa6)"
)


@dataclass(frozen=True)
class Control:
    """A control task by name, from which environments are made.

    Args:
        suite: gymnasium, dmc or humanoid_bench.
        task: the task's name in its suite, such as Humanoid-v5, humanoid-walk or h1-walk-v0.
        action_repeat: environment steps per decision.
        twin: whether there are two critics, of which the smaller value counts (clipped double Q-learning), for tasks
            that can end early.
        options: further arguments of the environment.

    Raises:
        ValueError: `suite` is unknown or `action_repeat` below 1.
    """

    suite: Annotated[str, one_of("gymnasium", "dmc", "humanoid_bench")]
    task: str
    action_repeat: Annotated[int, within(1, 1000)] = 1
    twin: bool = True
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_arguments(Control, vars(self))

    def make(self) -> Environment:
        """Return a new environment, whose actions are a vector of numbers with finite bounds.

        Raises:
            ConfigError: a package is missing or has another version; the task is unknown, its observations or actions
                are of another kind, or it returns values that do not fit the spaces which it declares.
        """
        options = self.options or {}
        environment = Environment(self.name, SUITES[self.suite](self.task, options))
        space = check_continuous(self.name, environment.action_space)
        if self.suite == "gymnasium":
            low, high = bounds(space)
            examine(environment, "env.task", self.task, options, ((low + high) / 2).astype(space.dtype))
        return environment

    @property
    def name(self) -> str:
        """The option that names the task, `env.task=NAME`, for messages."""
        return f"env.task={self.task}"


def make_task(task: str, options: dict[str, Any]) -> Any:
    """Return a Gymnasium environment; for an unknown task the error suggests similar names and packages to install."""
    return make_gymnasium("env.task", task, options)


class DmControl:
    """A task of DeepMind Control with Gymnasium's interface: flat observations, time limits as truncations."""

    def __init__(self, task: str, options: dict[str, Any]) -> None:
        domain, _, name = task.partition("-")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it opens a display, which only rendering needs
                suite: Any = without_drawing(lambda: importlib.import_module("dm_control.suite"))
            self.env = suite.load(domain, name, environment_kwargs={"flat_observation": False}, **options)
        except ImportError:
            raise ConfigError(f'env=dmc env.task={task} needs dm_control: pip install -e ".[dmc]"') from None
        except TypeError as error:
            raise ConfigError(
                f"env.options={options}: dm_control's suite.load does not take this ({first_line(error)}); it takes "
                "task_kwargs, such as {task_kwargs:{time_limit:10}}"
            ) from None
        except ValueError as error:
            raise ConfigError(f"env.task={task}: {first_line(error)}") from None
        action_spec = self.env.action_spec()
        self.action_space = Box(action_spec.minimum.astype(np.float32), action_spec.maximum.astype(np.float32))
        size = sum(int(np.prod(spec.shape)) for spec in self.env.observation_spec().values())
        self.observation_space = Box(-np.inf, np.inf, (size,))
        self.max_steps = int(self.env._step_limit) if math.isfinite(self.env._step_limit) else 0

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.task._random = np.random.RandomState(seed % 2**32)
        return self._flatten(self.env.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time_step = self.env.step(action)
        ended = time_step.last()
        terminated = ended and time_step.discount == 0
        observation, reward = self._flatten(time_step.observation), float(time_step.reward or 0)
        return observation, reward, terminated, ended and not terminated, {}

    def _flatten(self, observation: dict[str, Any]) -> np.ndarray:
        """Return the named parts of an observation as one vector, (size,)."""
        return np.concatenate([np.ravel(value) for value in observation.values()])

    def close(self) -> None:
        self.env.close()


def make_humanoid_bench(task: str, options: dict[str, Any]) -> Any:
    """Return an environment of HumanoidBench.

    Raises:
        ConfigError: HumanoidBench, its version of mujoco or OpenGL is missing; the message says how to install them.
    """
    try:
        if not (version := metadata.version("mujoco")).startswith("3.1."):
            raise ImportError(f"mujoco {version} is installed")
        importlib.import_module("humanoid_bench")
    except Exception as error:  # a part that is not installed, or OpenGL, of which each backend fails in its own way
        reason = f"with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"env=humanoid_bench env.task={task} does not work ({reason}). {BENCH}") from error
    return make_task(task, options)


SUITES = {"gymnasium": make_task, "dmc": DmControl, "humanoid_bench": make_humanoid_bench}


def decisions_at_most(environment: Environment, action_repeat: int) -> float:
    """Return the number of decisions after which an episode is truncated.

    Raises:
        ConfigError: the environment states no limit.
    """
    if environment.limit is None:
        raise ConfigError(
            f"{environment.name} has no time limit: its evaluation might never end; set one by "
            "env.options={max_episode_steps:1000}"
        )
    return environment.limit / action_repeat


# --------------------------------------------------------------------------------------------------------- statistics


class Statistics:
    """Running mean and variance of observations (Chan et al.'s parallel update), starting from 0, 1 and count 1e-4.

    Args:
        size: length of an observation.
    """

    def __init__(self, size: int) -> None:
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 1e-4

    def update(self, x: np.ndarray) -> None:
        """Include observations (k, size) in the running mean and variance."""
        mean, variance, count = x.mean(0, dtype=np.float64), x.var(0, dtype=np.float64), len(x)
        difference, total = mean - self.mean, self.count + count
        squares = self.variance * self.count + variance * count + difference**2 * self.count * count / total
        self.mean, self.variance, self.count = self.mean + difference * count / total, squares / total, total

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the mean and 1 / standard deviation, (size,) each, in float32."""
        scale = 1 / np.sqrt(self.variance + 1e-8)
        # Stacked, so that one transfer to the device suffices.
        mean_and_scale = torch.from_numpy(np.stack([self.mean, scale])).float().to(device, non_blocking=True)
        return mean_and_scale[0], mean_and_scale[1]

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean": torch.from_numpy(self.mean.copy()),
            "variance": torch.from_numpy(self.variance.copy()),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.variance = (state[name].cpu().numpy().copy() for name in ("mean", "variance"))
        self.count = state["count"]
