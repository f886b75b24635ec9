"""Environments that step for SAC: episodes that can be replayed, threads, whole episodes for evaluation."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from harness.config.errors import ConfigError
from harness.config.given import given_overrides
from harness.training import seeding
from rl.common.continual import ContinualControl, check_one_interface
from rl.common.physics import Physics
from rl.common.spaces import bounds, check_continuous
from rl.sac.control import Control, decisions_at_most

log = logging.getLogger(__name__)


class Tasks:
    """The control tasks of a stream, from which each worker makes its environments.

    Args:
        benchmark: the stream; it says what each task changes.
        control: the control task that `env=` names.
        seed: the run's seed.

    Attributes:
        controls: the control tasks that take turns.
        size: length to which observations are padded.
        actions: length of an action, which they have in common.
        decisions: the number of decisions after which the longest of their episodes is truncated.

    Raises:
        ConfigError: the control tasks have actions of different lengths, one has no time limit, the stream changes
            physics and an environment is not MuJoCo's, or the user has set a parameter that changes nothing in them.
    """

    def __init__(self, benchmark: ContinualControl, control: Control, seed: int) -> None:
        self.benchmark, self.seed = benchmark, seed
        names = benchmark.sequence or [control.task]
        self.controls = [replace(control, task=name) for name in names]
        sizes: list[int] = []
        actions: dict[str, int] = {}
        decisions: list[float] = []
        idle = set(benchmark.physics)  # parameters that have no effect in any of the environments
        for name, task_control in zip(names, self.controls, strict=True):
            env = task_control.make()
            try:
                sizes.append(env.size)
                actions[name] = env.action_size
                decisions.append(decisions_at_most(env, control.action_repeat))
                if benchmark.physics:
                    idle &= {*Physics(env.env).without_effect()}
            finally:
                env.close()
        refuse_idle_physics(idle, ", ".join(names))
        check_one_interface("actions", actions)
        self.size = benchmark.size_for(names[0], sizes)
        self.actions, self.decisions = actions[names[0]], max(decisions)


def refuse_idle_physics(idle: set[str], names: str) -> None:
    """Refuse parameters of physics that the user has set although they change nothing in these environments.

    Those that a preset sets are kept, so that the others are drawn as they were before.

    Raises:
        ConfigError: the message names the first.
    """
    given = [option.lstrip("+") for option in given_overrides()]
    for name in sorted(idle):
        if any(option.startswith("benchmark.physics") and name in option for option in given):
            raise ConfigError(f"benchmark.physics.{name} has no effect in env.task={names}: leave it out")


class Stepped(NamedTuple):
    """The result of one decision in one environment."""

    observation: np.ndarray  # (observations,), from which the action was chosen
    reward: float  # summed over the repeats of the action
    terminated: bool
    next_observation: np.ndarray  # (observations,); where the episode ended its last one, not the next episode's first
    ended_episode: tuple[float, int] | None  # return and environment steps of the episode, where it ended


class Worker:
    """One environment and the state of its episode.

    Args:
        control: the control task, where there is no stream.
        seed: the seed of this environment; episode n is reset with a seed derived from it and n.
        tasks: the control tasks of a stream; the worker begins in the first.
    """

    def __init__(self, control: Control, seed: int, tasks: Tasks | None = None) -> None:
        self.tasks, self.repeat, self.seed = tasks, control.action_repeat, seed
        self.envs = [task_control.make() for task_control in (tasks.controls if tasks else [control])]
        self.physics = [Physics(env.env) for env in self.envs] if tasks and tasks.benchmark.physics else []
        self.choose(0)
        self.episode = -1
        self.begin()

    def choose(self, task: int) -> None:
        """Use the environment of this task of a stream from the next episode on."""
        index = task % len(self.envs)
        self.env = self.envs[index]
        space = check_continuous(self.env.name, self.env.action_space)
        self.low, self.high = bounds(space)
        self.action_type = space.dtype
        if self.tasks is not None:
            self.change = self.tasks.benchmark.change(self.tasks.seed, task, self.tasks.size)
            if self.physics:
                self.physics[index].change(self.change.physics)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _transform(self, observation: np.ndarray) -> np.ndarray:
        """Return the observation as the agent gets it: padded and permuted as the task of a stream says."""
        return observation if self.tasks is None else self.change.observe(observation)

    def begin(self) -> None:
        """Start the next episode."""
        self.episode += 1
        observation = self.env.reset(seeding.derive(self.seed, "episode", self.episode) % 2**31)
        self.observation: np.ndarray = self._transform(observation)
        self.actions: list[np.ndarray] = []
        self.steps, self.total = 0, 0.0

    def step(self, action: np.ndarray) -> Stepped:
        """Take an action (actions,) in [-1, 1], repeated `action_repeat` times; a new episode starts when one ends."""
        previous = self.observation
        reward, terminated, truncated, steps = 0.0, False, False, 0
        for _ in range(self.repeat):
            # Each step gets a new array, since an environment may write into it.
            observation, step_reward, terminated, truncated = self.env.step(self.scaled(action))
            reward, steps = reward + step_reward, steps + 1
            if terminated or truncated:
                break
        next_observation = self.observation = self._transform(observation)
        self.actions.append(action)
        self.steps, self.total = self.steps + steps, self.total + reward
        ended_episode = None
        if terminated or truncated:
            ended_episode = (self.total, self.steps)
            self.begin()  # replaces self.observation
        return Stepped(previous, reward, terminated, next_observation, ended_episode)

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Return an action in [-1, 1] in the environment's units, clipped to its bounds, which rounding may exceed."""
        scaled: np.ndarray = np.clip(self.low + (action + 1) / 2 * (self.high - self.low), self.low, self.high)
        return scaled.astype(self.action_type)

    def state_dict(self) -> dict[str, Any]:
        """Return the episode's number, its actions so far, which replay it, and the observation they led to."""
        actions = np.array(self.actions, np.float32).reshape(len(self.actions), len(self.low))
        return {
            "episode": self.episode,
            "actions": torch.from_numpy(actions),
            "observation": torch.from_numpy(self.observation.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replay the episode from its seed and actions; warn if it ends in another observation."""
        self.episode = state["episode"] - 1
        self.begin()
        for action in state["actions"].cpu().numpy():
            self.step(action)
        if self.episode != state["episode"] or not np.array_equal(self.observation, state["observation"].cpu().numpy()):
            log.warning("a replayed episode came out differently: this environment is not deterministic here")


class Workers:
    """Environments that step in threads while the caller trains (MuJoCo releases Python's global lock).

    Args:
        control: the control task, where there is no stream.
        count: number of environments.
        seed: the run's seed, from which each environment's is derived.
        tasks: the control tasks of a stream.
    """

    def __init__(self, control: Control, count: int, seed: int, tasks: Tasks | None = None) -> None:
        seeds = [seeding.derive(seed, "environment", i) for i in range(count)]
        self.workers = [Worker(control, worker_seed, tasks=tasks) for worker_seed in seeds]
        self.pool = ThreadPoolExecutor(count, "environment")
        self.waiting: list[Future[Stepped]] = []

    @property
    def observations(self) -> np.ndarray:
        """Observations for the next decisions, (count, observations)."""
        return np.stack([worker.observation for worker in self.workers])

    def send(self, actions: np.ndarray) -> None:
        """Start a step in every environment, with actions (count, actions) in [-1, 1]."""
        self.waiting = [
            self.pool.submit(worker.step, action) for worker, action in zip(self.workers, actions, strict=True)
        ]

    def receive(self) -> list[Stepped]:
        """Wait for the step that `send` started and return its result for each environment.

        The wait looks up each second, so that a signal which another thread gets is handled in this one.
        """
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
        """Use the environments of this task of a stream from the next episodes on."""
        for worker in self.workers:
            worker.choose(task)

    def begin(self) -> None:
        """Start a new episode in every environment."""
        for worker in self.workers:
            worker.begin()

    def state_dict(self) -> list[dict[str, Any]]:
        return [worker.state_dict() for worker in self.workers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for worker, state in zip(self.workers, states, strict=True):
            worker.load_state_dict(state)


def play_episodes(workers: Sequence[Worker], policy: Callable[[np.ndarray], np.ndarray]) -> list[tuple[float, int]]:
    """Play one episode in each environment, and return its return and its length in environment steps.

    All episodes advance together, so that the policy gets one batch of observations per step.

    Args:
        workers: environments that are used for evaluation alone; every call plays the same episodes in them.
        policy: maps observations (k, o) to actions (k, a).
    """
    results: dict[int, tuple[float, int]] = {}
    for worker in workers:
        worker.episode = -1
        worker.begin()
    while running := [i for i in range(len(workers)) if i not in results]:
        actions = policy(np.stack([workers[i].observation for i in running]))
        for i, action in zip(running, actions, strict=True):
            ended_episode = workers[i].step(action).ended_episode
            if ended_episode is not None:
                results[i] = ended_episode
    return [results[i] for i in range(len(workers))]
