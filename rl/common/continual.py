"""Streams of control tasks on which agents lose plasticity: `benchmark=continual_control` of both agents.

Each task is the same environment, or the next of a list of environments with one interface, behind other observations
(permuted, with other signs, shifted) and other physics. A return is that of training episodes: `Returns`.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from omegaconf import DictConfig

from fire_core.ranges import Count, Width, checked, one_of, within
from harness.config.errors import ConfigError
from harness.training import seeding
from rl.common.physics import PARAMETERS

log = logging.getLogger(__name__)
LAST = 0.25  # the part of a task whose returns are its score


@dataclass(frozen=True)
class Phase:
    """A part of the training, from one step of the learner (`start`) to another (`end`)."""

    start: int
    end: int


def split(*ends: int) -> list[Phase]:
    """Phases that follow each other and end at these steps."""
    return [Phase(start, end) for start, end in zip((0, *ends), ends, strict=False)]


@dataclass(frozen=True)
class Change:
    """What a task changes.

    Attributes:
        order: which number of a padded observation comes at each place, (size,).
        signs: 1 or -1 for each place, (size,).
        offset: what is added, (size,).
        physics: factors of parameters, by name (`rl.common.physics`).
    """

    order: np.ndarray
    signs: np.ndarray
    offset: np.ndarray
    physics: dict[str, float]

    def observe(self, x: np.ndarray) -> np.ndarray:
        """Observations (..., numbers) as this task shows them, (..., size) float32; zeros are behind their numbers."""
        padded = np.zeros((*x.shape[:-1], len(self.order)), np.float32)
        padded[..., : x.shape[-1]] = x
        shown: np.ndarray = padded[..., self.order] * self.signs + self.offset
        return shown


class ContinualControl:
    """Tasks of equal length, one after the other.

    Where boundaries are known, the agent starts each task at its first exploration rate, conf/boundary says what
    else restarts, and methods act there. Where they are hidden, none of this happens; a method acts where its trigger
    says (`trigger=`).

    Args:
        tasks: how many.
        steps: of each, counted as the program counts its own (`total_steps` of DQN, `env_steps` of SAC).
        sequence: names of environments, which take turns; null: all tasks are in the one of `env=`.
        size: of an observation, with zeros behind its own numbers; null: the largest of the environments'.
        permute: whether each task has an order of its own of an observation's numbers.
        signs: whether each task flips the signs of half of them, on average.
        offset: deviation of the normal numbers that each task adds to an observation.
        physics: parameter -> lowest and highest factor; each task draws one, evenly in the logarithm.
        boundaries: known or hidden.

    Raises:
        ValueError: there is no such parameter of physics, or its factors are no range.
    """

    @checked
    def __init__(
        self,
        tasks: Annotated[int, within(1, 1_000_000)] = 10,
        steps: Count = 5000,
        sequence: list[str] | None = None,
        size: Width | None = None,
        permute: bool = True,
        signs: bool = True,
        offset: Annotated[float, within(0, 1e6)] = 1.0,
        physics: dict[str, list[float]] | None = None,
        boundaries: Annotated[str, one_of("known", "hidden")] = "known",
    ) -> None:
        self.tasks, self.steps, self.sequence, self.size = tasks, steps, sequence, size
        self.permute, self.signs, self.offset = permute, signs, offset
        self.physics, self.known = dict(physics or {}), boundaries == "known"
        if sequence is not None and not sequence:
            raise ValueError("sequence must name an environment, or be null")
        for name, ends in self.physics.items():
            if name not in PARAMETERS:
                raise ValueError(f"physics.{name} is unknown; accepted: {', '.join(PARAMETERS)}")
            if len(ends) != 2 or not 0 < ends[0] <= ends[1] < math.inf:
                raise ValueError(f"physics.{name} must be [lowest, highest] with 0 < lowest <= highest, got {ends}")

    @property
    def total_steps(self) -> int:
        """Of all tasks."""
        return self.tasks * self.steps

    def phases(self, option: str, total: int, each: int = 1) -> list[Phase]:
        """A phase for each task.

        Args:
            option: that says the run's length.
            total: its value.
            each: of these steps, in one of the loop's.

        Raises:
            ConfigError: the length is another one than that of all tasks.
        """
        if total != self.total_steps:
            raise ConfigError(
                f"{option}={total} is not benchmark.tasks={self.tasks} times benchmark.steps={self.steps}: leave it out"
            )
        if self.steps < each:
            raise ConfigError(f"benchmark.steps={self.steps} must be at least {each}, a step of all environments")
        return split(*(self.steps // each * task for task in range(1, self.tasks + 1)))

    def changes_observations(self) -> list[str]:
        """What turns off the options that change observations, of those that are on."""
        off = {"size": "null", "permute": "false", "signs": "false", "offset": "0"}
        return [f"benchmark.{name}={value}" for name, value in off.items() if getattr(self, name)]

    def change(self, seed: int, task: int, size: int) -> Change:
        """What a task changes, by the run's seed.

        Args:
            seed: of the run.
            task: its number, from 0.
            size: of an observation.
        """
        draw = np.random.default_rng(seeding.derive(seed, "task", task))
        order = draw.permutation(size) if self.permute else np.arange(size)
        signs = draw.choice([-1.0, 1.0], size) if self.signs else np.ones(size)
        offset = draw.normal(0.0, self.offset, size)
        ends = {name: np.log(self.physics[name]) for name in sorted(self.physics)}
        factors = {name: float(np.exp(draw.uniform(*pair))) for name, pair in ends.items()}
        return Change(order, signs.astype(np.float32), offset.astype(np.float32), factors)

    def name_of(self, task: int, otherwise: str) -> str:
        """The environment of a task."""
        return self.sequence[task % len(self.sequence)] if self.sequence else otherwise

    def size_for(self, env: str, sizes: Sequence[int]) -> int:
        """The size of observations.

        Args:
            env: the environments' names, for the message.
            sizes: of their own.

        Raises:
            ConfigError: `size` is smaller than these.
        """
        if self.size is not None and self.size < max(sizes):
            raise ConfigError(f"benchmark.size={self.size} is less than the {max(sizes)} numbers of env={env}")
        return max(sizes) if self.size is None else self.size


def fill_lengths(config: DictConfig, **lengths: int) -> None:
    """Put in the lengths that a configuration leaves to its stream, as 0."""
    for option, steps in lengths.items():
        if config[option] == 0:
            config[option] = steps


def check_one_interface(what: str, found: dict[str, int]) -> None:
    """Refuse environments that differ in a number, such as that of actions.

    Args:
        what: the number is of.
        found: by environment.

    Raises:
        ConfigError: with all of them.
    """
    if len(set(found.values())) > 1:
        numbers = ", ".join(f"{name} {number}" for name, number in found.items())
        raise ConfigError(f"benchmark.sequence needs environments with one number of {what}, got {numbers}")


@dataclass
class Returns:
    """Returns of training episodes: those of the task, each with the step of the task at which it ended, and of all.

    Attributes:
        ended: of the task.
        total: sum over the run.
        count: of the run's episodes.
        scores: `task/return` of the tasks that have ended; NaN of one in which no episode ended.
    """

    ended: list[list[float]] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    scores: list[float] = field(default_factory=list)

    def add(self, step: int, returns: Sequence[float]) -> None:
        """Episodes that ended with this step of the task."""
        self.ended += [[float(step), float(value)] for value in returns]
        self.total += math.fsum(returns)
        self.count += len(returns)

    def row(self, length: int, ended: bool) -> dict[str, float]:
        """For a row: `online/return`, and at a task's end `task/return` and `task/episodes`. Only whole episodes count.

        Args:
            length: of the task.
            ended: whether the task has ended.

        Returns:
            online/return: mean over the run's episodes so far. task/return: mean over those that ended in the last
            quarter of the task; where none did, of the task's last one. task/episodes: how many ended in the last
            quarter. A return of no episode is left out, and a task without one is named in the log.
        """
        numbers = {"online/return": self.total / self.count} if self.count else {}
        if not ended:
            return numbers
        late = [value for step, value in self.ended if step > (1 - LAST) * length]
        counted = late or [value for _, value in self.ended[-1:]]
        self.scores.append(float(np.mean(counted)) if counted else math.nan)
        if counted:
            numbers["task/return"] = self.scores[-1]
        else:
            log.warning("no task/return: no episode ended within the task's %d steps (benchmark.steps)", length)
        return numbers | {"task/episodes": len(late)}

    def summary(self) -> dict[str, float]:
        """The mean of the tasks' returns, of those in which an episode ended; nothing where there was none."""
        scores = [score for score in self.scores if not math.isnan(score)]
        return {"task/return": math.fsum(scores) / len(scores)} if scores else {}

    def begin_task(self) -> None:
        """A new task begins."""
        self.ended = []

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"ended": torch.tensor(self.ended).reshape(-1, 2), "total": self.total, "count": self.count} | {
            "scores": list(self.scores)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back `state_dict`'s."""
        self.ended = state["ended"].tolist()
        self.total, self.count, self.scores = state["total"], state["count"], list(state["scores"])
