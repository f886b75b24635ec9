"""Streams of control tasks on which agents lose plasticity: `benchmark=continual_control` of both agents.

Each task is the same environment, or the next of a list of environments with the same interface, with changed
observations (permuted, with other signs, shifted) and changed physics. The score is the return of training episodes,
see `Returns`.
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
LAST = 0.25  # share of a task, at its end, whose returns are the task's score


@dataclass(frozen=True)
class Phase:
    """A part of the training, from one step of the learner (`start`) to another (`end`)."""

    start: int
    end: int


def split(*ends: int) -> list[Phase]:
    """Return phases that follow each other and end at these steps."""
    return [Phase(start, end) for start, end in zip((0, *ends), ends, strict=False)]


@dataclass(frozen=True)
class Change:
    """What a task changes in observations and physics.

    Attributes:
        order: (size,), the index in the padded observation of the number that the task shows at each position.
        signs: (size,), 1 or -1 for each position.
        offset: (size,), added to each position.
        physics: factors of parameters, by name (`rl.common.physics`).
    """

    order: np.ndarray
    signs: np.ndarray
    offset: np.ndarray
    physics: dict[str, float]

    def observe(self, x: np.ndarray) -> np.ndarray:
        """Return observations (..., n) as this task shows them, (..., size) float32, padded with zeros first."""
        padded = np.zeros((*x.shape[:-1], len(self.order)), np.float32)
        padded[..., : x.shape[-1]] = x
        shown: np.ndarray = padded[..., self.order] * self.signs + self.offset
        return shown


class ContinualControl:
    """Tasks of equal length, one after the other.

    If boundaries are known, the agent explores each task anew from its first exploration rate, conf/boundary says what
    else restarts, and methods act there. If they are hidden, none of this happens, and a method acts when its trigger
    fires (`trigger=`).

    Args:
        tasks: number of tasks.
        steps: steps of each task, counted as the program counts its own (`total_steps` of DQN, `env_steps` of SAC).
        sequence: names of environments, which take turns; null takes that of `env=` for all tasks.
        size: length to which observations are padded with zeros; null takes the longest of the environments'.
        permute: whether each task shows the numbers of an observation in an order of its own.
        signs: whether each task flips the sign of each number with a chance of one half.
        offset: standard deviation of the normal numbers that each task adds to an observation.
        physics: parameter -> lowest and highest factor; each task draws a factor uniformly in the logarithm.
        boundaries: known or hidden.

    Raises:
        ValueError: a parameter of physics is unknown, or its factors are no range.
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
            are_numbers = isinstance(ends, Sequence) and all(type(end) in (int, float) for end in ends)
            if not are_numbers or len(ends) != 2 or not 0 < ends[0] <= ends[1] < math.inf:
                raise ValueError(f"physics.{name} must be [lowest, highest] with 0 < lowest <= highest, got {ends}")

    @property
    def total_steps(self) -> int:
        """Steps of all tasks together."""
        return self.tasks * self.steps

    def phases(self, option: str, total: int, each: int = 1) -> list[Phase]:
        """Return a phase for each task, in steps of the training loop.

        A task has `steps // each` of them; environment steps that are left over are not made.

        Args:
            option: name of the option that says the run's length.
            total: value of this option.
            each: how many of these steps one step of the training loop makes.

        Raises:
            ConfigError: `total` is not the length of all tasks together, or a task is shorter than a step of the loop.
        """
        if total != self.total_steps:
            raise ConfigError(
                f"{option}={total} is not benchmark.tasks={self.tasks} times benchmark.steps={self.steps}: leave it out"
            )
        if self.steps < each:
            raise ConfigError(f"benchmark.steps={self.steps} must be at least {each}, a step of all environments")
        return split(*(self.steps // each * task for task in range(1, self.tasks + 1)))

    def changes_observations(self) -> list[str]:
        """Return, for each option that changes observations and is on, the text that turns it off."""
        off_values = {"size": "null", "permute": "false", "signs": "false", "offset": "0"}
        return [f"benchmark.{name}={value}" for name, value in off_values.items() if getattr(self, name)]

    def change(self, seed: int, task: int, size: int) -> Change:
        """Draw what a task changes.

        Args:
            seed: seed of the run.
            task: number of the task, from 0.
            size: length of an observation.
        """
        generator = np.random.default_rng(seeding.derive(seed, "task", task))
        order = generator.permutation(size) if self.permute else np.arange(size)
        signs = generator.choice([-1.0, 1.0], size) if self.signs else np.ones(size)
        offset = generator.normal(0.0, self.offset, size)
        factors = {}
        for name in sorted(self.physics):
            lowest, highest = np.log(self.physics[name])
            factors[name] = float(np.exp(generator.uniform(lowest, highest)))
        return Change(order, signs.astype(np.float32), offset.astype(np.float32), factors)

    def name_of(self, task: int, default: str) -> str:
        """Return the name of a task's environment, `default` if the stream has no sequence of environments."""
        return self.sequence[task % len(self.sequence)] if self.sequence else default

    def size_for(self, env: str, sizes: Sequence[int]) -> int:
        """Return the length of the observations that the agent gets.

        Args:
            env: name of the environments, for the message.
            sizes: length of each environment's own observations.

        Raises:
            ConfigError: `size` is smaller than one of these.
        """
        if self.size is not None and self.size < max(sizes):
            raise ConfigError(f"benchmark.size={self.size} is less than the {max(sizes)} numbers of env={env}")
        return max(sizes) if self.size is None else self.size


def fill_lengths(config: DictConfig, **lengths: int) -> None:
    """Replace lengths that are 0 in a configuration, which leaves them to its stream, by the given ones."""
    for option, steps in lengths.items():
        if config[option] == 0:
            config[option] = steps


def check_one_interface(quantity: str, numbers: dict[str, int]) -> None:
    """Check that all environments have the same number of something, such as actions.

    Args:
        quantity: what is counted.
        numbers: the number of each environment, by its name.

    Raises:
        ConfigError: the numbers differ.
    """
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise ConfigError(f"benchmark.sequence needs environments with one number of {quantity}, got {listed}")


@dataclass
class Returns:
    """The returns of training episodes in a stream of tasks.

    Attributes:
        ended: the episodes that ended in the present task: [step of the task at which it ended, return].
        total: sum of the returns of all episodes of the run.
        count: number of episodes of the run.
        scores: `task/return` of each task that has ended; NaN if no episode ended in it.
    """

    ended: list[list[float]] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    scores: list[float] = field(default_factory=list)

    def add(self, step: int, returns: Sequence[float]) -> None:
        """Add the returns of episodes that ended with this step of the task."""
        self.ended += [[float(step), float(value)] for value in returns]
        self.total += math.fsum(returns)
        self.count += len(returns)

    def log_row(self, length: int, ended: bool) -> dict[str, float]:
        """Return the numbers for a row of the log, and at the end of a task store its score.

        Call it once a row; only complete episodes count.

        Args:
            length: steps of the task.
            ended: whether the task has ended.

        Returns:
            online/return is the mean over the run's episodes so far. At the end of a task, task/return is the mean over
            the episodes that ended in its last quarter, or if none did the return of its last episode, and
            task/episodes is how many ended in the last quarter. A mean over no episode is left out, and a task without
            an episode is reported in the log.
        """
        numbers = {"online/return": self.total / self.count} if self.count else {}
        if not ended:
            return numbers
        in_last_quarter = [value for step, value in self.ended if step > (1 - LAST) * length]
        scored = in_last_quarter or [value for _, value in self.ended[-1:]]
        self.scores.append(float(np.mean(scored)) if scored else math.nan)
        if scored:
            numbers["task/return"] = self.scores[-1]
        else:
            log.warning("no task/return: no episode ended within the task's %d steps (benchmark.steps)", length)
        return numbers | {"task/episodes": len(in_last_quarter)}

    def summary(self) -> dict[str, float]:
        """Return the mean of `task/return` over the tasks in which an episode ended; empty if there was none."""
        scores = [score for score in self.scores if not math.isnan(score)]
        return {"task/return": math.fsum(scores) / len(scores)} if scores else {}

    def begin_task(self) -> None:
        """Forget the episodes of the task before, because a new task begins."""
        self.ended = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ended = torch.tensor(self.ended, dtype=torch.float64)  # returns are float64 and stay so in a resumed run
        return {"ended": ended.reshape(-1, 2), "total": self.total, "count": self.count} | {"scores": list(self.scores)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.ended = state["ended"].tolist()
        self.total, self.count, self.scores = state["total"], state["count"], list(state["scores"])
