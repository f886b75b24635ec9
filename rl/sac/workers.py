"""Environments that step for SAC: episodes that can be replayed, threads, whole episodes for evaluation."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from harness.training import seeding
from rl.common.continual import ContinualControl, check_one_interface
from rl.common.environments import bounds, check_continuous
from rl.common.physics import Physics
from rl.sac.control import Control

log = logging.getLogger(__name__)


class Tasks:
    """The environments of a stream of tasks, before any of them exists.

    Args:
        benchmark: says what each task changes.
        control: of `env=`.
        seed: of the run.

    Attributes:
        controls: those that take turns.
        size: of an observation.

    Raises:
        ConfigError: they have different interfaces, or physics are to change and they are not MuJoCo's.
    """

    def __init__(self, benchmark: ContinualControl, control: Control, seed: int) -> None:
        self.benchmark, self.seed = benchmark, seed
        names = benchmark.sequence or [control.task]
        self.controls = [replace(control, task=name) for name in names]
        sizes: list[int] = []
        actions: dict[str, int] = {}
        for name, one in zip(names, self.controls, strict=True):
            env = one.make()
            try:
                sizes.append(env.size)
                actions[name] = env.action_size
                if benchmark.physics:
                    Physics(env.env)
            finally:
                env.close()
        check_one_interface("actions", actions)
        self.size = benchmark.size_for(names[0], sizes)


class Stepped(NamedTuple):
    """The result of one decision in one environment."""

    before: np.ndarray  # (observations,), where the decision was taken
    reward: float  # summed over the repeats
    terminated: bool
    following: np.ndarray  # (observations,); an episode's true last one where it ended
    ended: tuple[float, int] | None  # return and environment steps of an episode that ended


class Worker:
    """One environment and the state of its episode.

    Args:
        control: the task.
        seed: of the run and purpose; episode n is reset with a seed derived from it and n.
        tasks: a stream of them; it begins in its first.
    """

    def __init__(self, control: Control, seed: int, tasks: Tasks | None = None) -> None:
        self.tasks, self.repeat, self.seed = tasks, control.action_repeat, seed
        self.envs = [one.make() for one in (tasks.controls if tasks else [control])]
        self.physics = [Physics(env.env) for env in self.envs] if tasks and tasks.benchmark.physics else []
        self.choose(0)
        self.episode = -1
        self.begin()

    def choose(self, task: int) -> None:
        """Be in this task of a stream from the next episode on."""
        place = task % len(self.envs)
        self.env = self.envs[place]
        space = check_continuous(self.env.name, self.env.action_space)
        self.low, self.high = bounds(space)
        self.action_type = space.dtype
        if self.tasks is not None:
            self.change = self.tasks.benchmark.change(self.tasks.seed, task, self.tasks.size)
            if self.physics:
                self.physics[place].change(self.change.physics)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _seen(self, observation: np.ndarray) -> np.ndarray:
        return observation if self.tasks is None else self.change.observe(observation)

    def begin(self) -> None:
        """Start the next episode."""
        self.episode += 1
        observation = self.env.reset(seeding.derive(self.seed, "episode", self.episode) % 2**31)
        self.observation: np.ndarray = self._seen(observation)
        self.actions: list[np.ndarray] = []
        self.steps, self.total = 0, 0.0

    def step(self, action: np.ndarray) -> Stepped:
        """Act, `action` in [-1, 1]; a new episode starts when one ends."""
        before = self.observation
        reward, terminated, truncated, steps = 0.0, False, False, 0
        for _ in range(self.repeat):
            # An array of its own for each step: an environment may write into it.
            observation, part, terminated, truncated = self.env.step(self.scaled(action))
            reward, steps = reward + part, steps + 1
            if terminated or truncated:
                break
        following = self.observation = self._seen(observation)
        self.actions.append(action)
        self.steps, self.total = self.steps + steps, self.total + reward
        ended = None
        if terminated or truncated:
            ended = (self.total, self.steps)
            self.begin()
        return Stepped(before, reward, terminated, following, ended)

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """An action in [-1, 1] as the environment's own, within its bounds whatever is lost in rounding."""
        scaled: np.ndarray = np.clip(self.low + (action + 1) / 2 * (self.high - self.low), self.low, self.high)
        return scaled.astype(self.action_type)

    def state_dict(self) -> dict[str, Any]:
        """The episode's number and actions."""
        actions = np.array(self.actions, np.float32).reshape(len(self.actions), len(self.low))
        return {
            "episode": self.episode,
            "actions": torch.from_numpy(actions),
            "observation": torch.from_numpy(self.observation.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replay the episode."""
        self.episode = state["episode"] - 1
        self.begin()
        for action in state["actions"].cpu().numpy():
            self.step(action)
        if self.episode != state["episode"] or not np.array_equal(self.observation, state["observation"].cpu().numpy()):
            log.warning("a replayed episode came out differently: this environment is not deterministic here")


class Workers:
    """Environments that step in threads while the caller does something else (MuJoCo releases Python's global lock).

    Args:
        control: the task.
        count: environments.
        seed: of the run; each environment's seed is derived from it.
        tasks: a stream of them.
    """

    def __init__(self, control: Control, count: int, seed: int, tasks: Tasks | None = None) -> None:
        seeds = [seeding.derive(seed, "environment", i) for i in range(count)]
        self.workers = [Worker(control, one, tasks=tasks) for one in seeds]
        self.pool = ThreadPoolExecutor(count, "environment")
        self.waiting: list[Future[Stepped]] = []

    @property
    def observations(self) -> np.ndarray:
        """Observations for the next decisions, (count, observations)."""
        return np.stack([worker.observation for worker in self.workers])

    def send(self, actions: np.ndarray) -> None:
        """Start a step, actions (count, actions) in [-1, 1]."""
        self.waiting = [
            self.pool.submit(worker.step, action) for worker, action in zip(self.workers, actions, strict=True)
        ]

    def receive(self) -> list[Stepped]:
        """Wait for the step. Looks up each second: a signal that another thread gets is handled in this one."""
        for future in self.waiting:
            while not future.done():
                wait([future], timeout=1.0)
        return [future.result() for future in self.waiting]

    def close(self) -> None:
        """Wait for the threads and close the environments."""
        self.pool.shutdown()
        for worker in self.workers:
            worker.close()

    def choose(self, task: int) -> None:
        """Be in this task of a stream from the next episodes on."""
        for worker in self.workers:
            worker.choose(task)

    def begin(self) -> None:
        """Start new episodes."""
        for worker in self.workers:
            worker.begin()

    def state_dict(self) -> list[dict[str, Any]]:
        return [worker.state_dict() for worker in self.workers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for worker, state in zip(self.workers, states, strict=True):
            worker.load_state_dict(state)


def play_episodes(workers: Sequence[Worker], policy: Callable[[np.ndarray], np.ndarray]) -> list[tuple[float, int]]:
    """Return and length of one episode in each environment, which are reset and step in parallel.

    Args:
        workers: environments for evaluation alone; every evaluation plays the same episodes.
        policy: observations (k, o) -> actions (k, a).
    """
    results: dict[int, tuple[float, int]] = {}
    for worker in workers:
        worker.episode = -1
        worker.begin()
    while left := [i for i in range(len(workers)) if i not in results]:
        actions = policy(np.stack([workers[i].observation for i in left]))
        for i, action in zip(left, actions, strict=True):
            if (ended := workers[i].step(action).ended) is not None:
                results[i] = ended
    return [results[i] for i in range(len(workers))]
