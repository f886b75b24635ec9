"""Environments of one's own: what gymnasium allows is right in both agents, or refused before the first step."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Space, Text, Tuple
from gymnasium.wrappers import TimeLimit

from harness.config.errors import ConfigError, TrainingError
from rl.common import foreign_code
from rl.common.environments import Environment, make_gymnasium
from rl.dqn.classic import Classic
from rl.dqn.episodes import Episodes
from rl.dqn.evaluation import play
from rl.dqn.frames import FrameReplay
from rl.dqn.task import Task as DqnTask
from rl.sac.control import Control
from rl.sac.task import Task as SacTask
from rl.sac.workers import Worker
from tests.programs import DQN, SAC, Program, rows, summary
from tests.rl.own import ACTIONS, VECTOR, Own, register

PROGRAMS = pytest.mark.parametrize("program", [DQN, SAC], ids=["dqn", "sac"])
TASKS = {"dqn": DqnTask, "sac": SacTask}
ROOT = Path(__file__).parents[2]
SHORT = ("env_steps=160", "random_steps=40", "eval_every=80", "eval_episodes=2")  # a run of SAC


def composed(program: Program, name: str, *more: str) -> Any:
    """The configuration of a smallest run in the environment of this name; a program is composed once for all names."""
    config = program.compose(*(["env=cartpole"] if program is DQN else ["env=mujoco", *SHORT]), *more)
    config.env["game" if program is DQN else "task"] = name
    return config


def keeping(made: list[Own], make: Callable[[], Own]) -> Callable[[], Own]:
    """Makes an environment, and keeps it in a list."""

    def made_and_kept() -> Own:
        made.append(make())
        return made[-1]

    return made_and_kept


def refusal(program: Program, make: Callable[..., Any], *more: str, limit: int | None = 100) -> str:
    """The line with which a program refuses an environment before the first step."""
    name = register(make, limit)
    with pytest.raises(ConfigError) as error:
        TASKS[program.name].from_config(composed(program, name, *more))
    line = str(error.value)
    assert line.startswith(f"env.{'game' if program is DQN else 'task'}={name}"), line
    assert "\n" not in line
    return line


# --------------------------------------------------------------------------------------------------------------- spaces

OBSERVATIONS: list[Space[Any]] = [
    Box(0, 255, (8, 8, 3), np.uint8),
    Box(0, 1, (3, 8, 8), np.float32),
    Box(-1, 1, (), np.float32),
    Box(-1, 1, (0,), np.float32),
    Box(-1, 1, (4, 1), np.float32),
    Box(-1, 1, (2**20 + 1,), np.float32),
    Dict(observation=VECTOR, desired_goal=VECTOR),
    Tuple((VECTOR, Discrete(2))),
    Discrete(5),
    MultiDiscrete([2, 3]),
    MultiBinary(4),
    Text(8),
    Graph(VECTOR, None),
    Sequence(VECTOR),
    OneOf((VECTOR, Discrete(2))),
]


@PROGRAMS
@pytest.mark.parametrize("space", OBSERVATIONS, ids=lambda space: f"{type(space).__name__}{space.shape}")
def test_observations_that_are_no_vector_are_refused(program: Program, space: Space[Any]) -> None:
    said = refusal(program, lambda: Own(ACTIONS[program.name], space))
    assert "observations must" in said


REFUSED_ACTIONS: list[tuple[Program, Space[Any], str]] = [
    (DQN, Box(-1, 1, (2,)), "discrete actions"),
    (DQN, MultiDiscrete([2, 3]), "discrete actions"),
    (DQN, MultiBinary(3), "discrete actions"),
    (DQN, Dict(left=Discrete(2), right=Discrete(2)), "discrete actions"),
    (DQN, Tuple((Discrete(2), Discrete(2))), "discrete actions"),
    (DQN, Text(3), "discrete actions"),
    (DQN, Discrete(2**40), "at most 1048576"),
    (DQN, Discrete(3, start=254, dtype=np.uint8), "the last action, 256, is no number of the type uint8"),
    (SAC, Discrete(3), "continuous actions"),
    (SAC, MultiBinary(3), "continuous actions"),
    (SAC, Dict(arm=Box(-1, 1, (2,))), "continuous actions"),
    (SAC, Box(0, 9, (2,), np.int64), "continuous actions"),
    (SAC, Box(0, 1, (2,), np.bool_), "continuous actions"),
    (SAC, Box(-1, 1, (2, 3)), "a vector of 1 to 1048576 numbers"),
    (SAC, Box(-1, 1, ()), "a vector of 1 to 1048576 numbers"),
    (SAC, Box(-1, 1, (0,)), "a vector of 1 to 1048576 numbers"),
    (SAC, Box(-np.inf, np.inf, (2,)), "number 0 of an action is in [-inf, inf]: SAC needs finite bounds"),
    (SAC, Box(np.float32([-1, 0]), np.float32([1, np.inf])), "number 1 of an action is in [0.0, inf]"),
    (SAC, Box(np.float32([-1, -np.inf]), np.float32([1, 0])), "number 1 of an action is in [-inf, 0.0]"),
    (SAC, Box(-3e38, 3e38, (1,)), "SAC needs finite bounds"),  # finite, but their difference is not
    (SAC, Box(np.float32([-1, 0.5]), np.float32([1, 0.5])), "number 1 of an action is in [0.5, 0.5]: it cannot be"),
]


@pytest.mark.parametrize(("program", "space", "said"), REFUSED_ACTIONS, ids=lambda value: str(value)[:40])
def test_actions_that_an_agent_cannot_choose_are_refused(program: Program, space: Space[Any], said: str) -> None:
    assert said in refusal(program, lambda: Own(space))


def test_a_lowest_action_above_the_highest_is_refused() -> None:
    """Gymnasium's Box refuses it where it is made, and not where its bounds are set afterwards."""
    space = Box(-1, 1, (2,), np.float32)
    space.low = np.float32([-1, 2])
    said = refusal(SAC, lambda: Own(space, show=lambda steps: np.zeros(3, np.float32)))
    assert "number 1 of an action is in [2.0, 1.0]: its lowest value is above its highest" in said


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_of_legal_actions_is_not_followed_and_this_is_said(
    masked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Masked(Own):
        def reset(self, **options: Any) -> Any:
            shown, info = super().reset(**options)
            return shown, info | ({"action_mask": np.array([1, 0], np.int8)} if masked else {})

    name = register(lambda: Masked(Discrete(2)), 100)
    Classic(name, 2)
    assert caplog.text.count(f"env.game={name}: its action_mask is not followed") == masked


TYPES = [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, np.bool_]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_observations_of_every_type_of_number_are_taken_as_float32(kind: type[Any]) -> None:
    values = np.array([0, 1, 1, 0]).astype(kind)
    space = Box(0, 1, (4,), kind)
    for_dqn = Classic(register(lambda: Own(Discrete(2), space, lambda steps: values), 100), 2)
    first = for_dqn.reset([0, 1], [3, 4])
    for_dqn.send(np.array([0, 1]))
    following = for_dqn.recv()[0]
    worker = Worker(Control("gymnasium", register(lambda: Own(ACTIONS["sac"], space, lambda steps: values), 100)), 0)
    stepped = worker.step(np.zeros(2, np.float32))
    for seen in (first[0], first[1], following[0], following[1], stepped.observation, stepped.next_observation):
        assert seen.dtype == np.float32
        assert seen.tolist() == [0.0, 1.0, 1.0, 0.0]


@PROGRAMS
def test_a_run_with_other_numbers_and_an_environment_that_cannot_be_closed_ends_well(
    program: Program, tmp_path: Path
) -> None:
    class Stuck(Own):
        def close(self) -> None:
            raise OSError("it is closed already")

    name = register(lambda: Stuck(ACTIONS[program.name], Box(0, 1, (4,), np.int64)), 100)
    folder = program.run_composed(tmp_path, composed(program, name))
    assert summary(folder)["eval/return"] == 20.0


# -------------------------------------------------------------------------------------------------------------- actions


@pytest.mark.parametrize("space", [Discrete(3, start=-1), Discrete(3, start=7, dtype=np.int8)])
def test_an_environment_gets_the_actions_of_its_own_space(space: Discrete, tmp_path: Path) -> None:
    """And values belong to the actions that were taken: the highest gives a reward, and the agent finds it."""
    made: list[Own] = []
    best = int(space.start) + 2

    class Rewarding(Own):
        def step(self, action: Any) -> Any:
            _, _, *rest = super().step(action)
            return np.zeros(3, np.float32), float(action == best), *rest

    name = register(keeping(made, lambda: Rewarding(space)), 100)
    folder = DQN.run_composed(tmp_path, composed(DQN, name, "eval.epsilon=0", "lr=0.01", "gamma=0.5"))
    sent = [action for environment in made for action in environment.sent]
    assert {int(action) for action in sent} == {best - 2, best - 1, best}
    assert all(action in space for action in sent)
    assert summary(folder)["eval/return"] == 20.0


def test_more_than_256_actions_are_kept_as_they_are() -> None:
    """In the replay, and in a checkpoint, from which an unfinished episode is replayed."""
    taken = [0, 100, 255, 256, 299, 70_000]
    replay = FrameReplay(64, 1, (3,), torch.float32, 1)
    replay.start(torch.tensor([0]), torch.zeros(1, 3))
    for action in taken:
        replay.append(torch.zeros(1, 3), torch.tensor([action]), torch.zeros(1), torch.zeros(1, dtype=torch.bool))
    rows = torch.arange(1, len(taken) + 1)
    assert replay.gather(torch.zeros(len(taken), dtype=torch.int64), rows).actions.tolist() == taken

    name = register(lambda: Own(Discrete(80_000), length=None), 100)
    one, other = (Episodes(Classic(name, 1), 0, "test") for _ in range(2))
    one.begin()
    for action in taken:
        one.send(torch.tensor([action]))
        one.recv()
    assert other.load_state_dict(one.state_dict())
    emulator = other.emulator
    assert isinstance(emulator, Classic)
    assert [int(action) for action in emulator._envs[0].env.unwrapped.sent] == taken


BOUNDS = [
    Box(np.float32([-1.0, 0.1]), np.float32([0.3, 5.0]), dtype=np.float32),
    Box(np.array([-1e-3, 1e6]), np.array([7.7, 2e6]), dtype=np.float64),
    Box(-6e4, 6e4, (2,), np.float16),  # whose difference is beyond the largest number of its type
]


@pytest.mark.parametrize("space", BOUNDS, ids=str)
def test_actions_are_within_their_bounds_and_reach_them(space: Box) -> None:
    name = register(lambda: Own(space), 100)
    worker = Worker(Control("gymnasium", name), 0)
    draws = np.random.default_rng(0).uniform(-1, 1, (15, 2)).astype(np.float32)
    for draw in [np.full(2, -1, np.float32), np.full(2, 1, np.float32), *draws]:
        worker.step(draw)
    sent = worker.env.env.unwrapped.sent
    assert all(action in space for action in sent)
    np.testing.assert_allclose(sent[:2], [space.low, space.high], rtol=3e-7)
    expected = space.low.astype(float) + (draws.astype(float) + 1) / 2 * (space.high.astype(float) - space.low)
    np.testing.assert_allclose(np.array(sent[2:], float), expected, rtol=2e-3 if space.dtype == np.float16 else 1e-5)


class Reusing(Own):
    """Returns the same array each time, and writes into the action, as some environments do."""

    def __init__(self, actions: Space[Any]) -> None:
        super().__init__(actions)
        self.seen = np.zeros(3, np.float32)

    def _shown(self) -> Any:
        self.seen += 1
        return self.seen

    def step(self, action: Any) -> Any:
        result = super().step(np.array(action))
        if isinstance(action, np.ndarray):
            action *= 0
        return result


def test_arrays_that_an_environment_goes_on_using_change_nothing() -> None:
    name = register(lambda: Reusing(ACTIONS["sac"]), 100)
    worker = Worker(Control("gymnasium", name, action_repeat=2), 0)
    action = np.array([0.5, -0.5], np.float32)
    stepped = worker.step(action)
    np.testing.assert_array_equal(stepped.next_observation - stepped.observation, [2, 2, 2])
    np.testing.assert_array_equal(worker.env.env.unwrapped.sent, [action, action])
    emulator = Classic(register(lambda: Reusing(Discrete(2)), 100), 1)
    first = emulator.reset([0], [0])
    emulator.send(np.array([1]))
    np.testing.assert_array_equal(emulator.recv()[0] - first, [[1, 1, 1]])


# ---------------------------------------------------------------------------------------- environments that do wrong


def change(place: int, value: Any, from_step: int = 30) -> Callable[[tuple[Any, ...], int], Any]:
    """An `after` of `Own` that puts a wrong value into what a late step returns."""

    def after(result: tuple[Any, ...], steps: int) -> Any:
        return (*result[:place], value, *result[place + 1 :]) if steps >= from_step else result

    return after


def returns(value: Any) -> Callable[[tuple[Any, ...], int], Any]:
    return lambda result, steps: value if steps >= 30 else result


def raises(error: BaseException) -> Callable[[tuple[Any, ...], int], Any]:
    def after(result: tuple[Any, ...], steps: int) -> Any:
        if steps >= 30:
            raise error
        return result

    return after


FAULTS: dict[str, tuple[Callable[[tuple[Any, ...], int], Any], str]] = {
    "raises": (raises(ValueError("the arm\nis stuck")), "step raised ValueError: the arm is stuck"),
    "without words": (raises(KeyError()), "step raised KeyError"),
    "a lost connection": (raises(ConnectionResetError(104, "reset by peer")), "step raised ConnectionResetError"),
    "assertion": (raises(AssertionError("no")), "step raised AssertionError: no"),
    "exit": (raises(SystemExit(0)), r"step called exit\(0\)"),
    # Gymnasium's own TimeLimit says it first.
    "four values": (returns((np.zeros(3), 1.0, False, {})), r"step raised ValueError: .*\(expected 5, got 4\)"),
    "nothing": (returns(None), "step raised TypeError: cannot unpack non-iterable NoneType object"),
    "NaN": (change(0, np.array([0, np.nan, 0])), "an observation whose number 1 is nan"),
    "infinite": (change(0, np.array([0, 0, np.inf])), "an observation whose number 2 is inf"),
    "beyond float32": (change(0, np.array([1e300, 0, 0])), r"an observation whose number 0 is 1e\+300"),
    "longer": (change(0, np.zeros(4)), r"an observation of shape \(4,\), and observation_space says \(3,\)"),
    "a column": (change(0, np.zeros((3, 1))), r"an observation of shape \(3, 1\), and observation_space says \(3,\)"),
    "a number": (change(0, 0.5), r"an observation of shape \(\), and"),
    "no observation": (change(0, None), "the observation None, which is no array of numbers"),
    "a text": (change(0, "up"), "the observation 'up', which is no array of numbers"),
    "a table": (change(0, {"a": np.zeros(3)}), "the observation .* which is no array of numbers"),
    "ragged": (change(0, [[0.0], [0.0, 1.0], 2.0]), "the observation .* which is no array"),
    "complex": (change(0, np.zeros(3, complex)), "which is no array of numbers"),
    "a gradient": (change(0, torch.zeros(3, requires_grad=True)), r"which is no array \(RuntimeError: "),
    "bfloat16": (change(0, torch.zeros(3, dtype=torch.bfloat16)), r"which is no array \(TypeError: .* BFloat16\)"),
    "reward NaN": (change(1, float("nan")), "step returned the reward nan"),
    "reward infinite": (change(1, -np.inf), "step returned the reward -inf"),
    "no reward": (change(1, None), "the reward None, which is no number"),
    "ragged rewards": (change(1, [1.0, [2.0]]), r"the reward \[1.0, \[2.0\]\], which is no array"),
    "a reward's gradient": (change(1, torch.ones(1, requires_grad=True)), "the reward tensor.*, which is no array"),
    "two rewards": (change(1, np.ones(2)), r"the reward array\(\[1., 1.\]\), which is no number"),
    "no flag": (change(2, None), "terminated=None, which is neither true nor false"),
    "ragged flags": (change(2, [1, [0]]), r"terminated \[1, \[0\]\], which is no array"),
    "a word": (change(3, "no"), "truncated='no', which is neither true nor false"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_environment_does_wrong_is_one_line(fault: str) -> None:
    after, said = FAULTS[fault]
    name = register(lambda: Own(Discrete(2), after=after, length=None), 50)
    environment = Environment(f"env.game={name}", make_gymnasium("env.game", name, {}))
    environment.reset(7)
    for _ in range(29):
        environment.step(0)
    with pytest.raises(TrainingError, match=f"^env.game={name}: .*{said}") as error:
        environment.step(0)
    line = str(error.value)
    assert "\n" not in line
    assert re.search(r" \(after (29|30) steps of the episode with seed 7\)$", line)


# What `execute` and SAC's threads might take for something else, and what is looked at after the step.
FATAL = pytest.mark.parametrize("fault", ["raises", "a lost connection", "exit", "NaN"])


@PROGRAMS
@FATAL
def test_a_fault_in_a_run_ends_it_with_this_line(program: Program, fault: str, tmp_path: Path) -> None:
    after, said = FAULTS[fault]
    name = register(lambda: Own(ACTIONS[program.name], after=after, length=None), 50)
    with pytest.raises(TrainingError, match=said) as error:
        program.run_composed(tmp_path, composed(program, name, "cache=off"))
    line = str(error.value)
    assert line.startswith(f"env.{'game' if program is DQN else 'task'}={name}: ")
    assert "\n" not in line
    assert "after 29 steps" in line or "after 30 steps" in line
    (failed,) = tmp_path.glob("*/*/FAILED")
    assert failed.read_text() == f"TrainingError: {line}\n"


@PROGRAMS
@FATAL
def test_what_the_first_step_does_wrong_is_refused(program: Program, fault: str) -> None:
    after, said = FAULTS[fault]
    line = refusal(program, lambda: Own(ACTIONS[program.name], after=lambda result, steps: after(result, steps + 99)))
    assert said.split()[0] in line
    assert "after 0 steps" in line or "after 1 steps" in line


@PROGRAMS
def test_spaces_that_lie_and_resets_of_other_interfaces_are_refused(program: Program) -> None:
    actions = ACTIONS[program.name]
    said = refusal(program, lambda: Own(actions, show=lambda steps: np.zeros(7, np.float32)))
    assert "reset returned an observation of shape (7,), and observation_space says (3,)" in said

    class Old(Own):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0]  # as gym's, before 0.26

    assert "reset returned array(" in refusal(program, lambda: Old(actions))

    class Unseeded(Own):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    assert "reset raised TypeError: " in refusal(program, lambda: Unseeded(actions))

    def fails() -> Any:
        raise RuntimeError("no robot\nis connected")

    assert refusal(program, fails).endswith(": RuntimeError: no robot is connected")
    assert "TypeError: " in refusal(program, lambda: object())


class Without(Own):
    """Lacks one of its spaces."""

    def __init__(self, actions: Space[Any], attribute: str) -> None:
        super().__init__(actions)
        delattr(self, attribute)


class Foreign:
    """A space of another package, such as gym's."""

    n, shape, dtype, low, high = 3, (2,), np.float32, np.float32([-1, -1]), np.float32([1, 1])

    def __repr__(self) -> str:
        return "Discrete(3)"


@PROGRAMS
def test_spaces_that_are_missing_or_of_another_package_are_refused(program: Program) -> None:
    actions = ACTIONS[program.name]
    for attribute in ("action_space", "observation_space"):
        said = refusal(program, lambda attribute=attribute: Without(actions, attribute))
        assert f": its {attribute} cannot be read (AttributeError: " in said

    class Unconnected(Own):
        @property  # type: ignore[override]
        def observation_space(self) -> Any:
            raise RuntimeError("connect first")

        @observation_space.setter
        def observation_space(self, space: Any) -> None:
            pass

    said = refusal(program, lambda: Unconnected(actions))
    assert ": its observation_space cannot be read (RuntimeError: connect first)" in said
    said = refusal(program, lambda: Own(Foreign()))  # type: ignore[arg-type]
    assert "its action_space must be a space of gymnasium.spaces, not Discrete(3), which is a tests." in said
    assert "its action_space must be a space of gymnasium.spaces, not None" in refusal(program, lambda: Own(None))  # type: ignore[arg-type]


@PROGRAMS
@pytest.mark.parametrize("code", [0, None, "no licence"])
def test_code_that_leaves_while_it_is_made_is_a_refusal_and_no_end_without_a_word(program: Program, code: Any) -> None:
    """As a script's without `if __name__ == "__main__"`, which its import runs."""

    def leaves() -> Any:
        sys.exit(code)

    assert refusal(program, leaves).endswith(f": its code called exit({code!r}) while it was being made")


@PROGRAMS
def test_spaces_that_differ_each_time_are_refused(program: Program) -> None:
    """One agent acts in all environments: the run's own, those of evaluations, and after a resume."""
    sizes = itertools.count(3)
    said = refusal(program, lambda: Own(ACTIONS[program.name], Box(-1, 1, (next(sizes),), np.float32)))
    assert "two environments of this task have different numbers in an observation, " in said

    def others(number: int) -> Space[Any]:
        return Discrete(3, start=number) if program is DQN else Box(-number, number, (2,), np.float32)

    assert "have different actions, " in refusal(program, lambda: Own(others(next(sizes))))
    numbers = iter([3] * 3 + [4] * 9)  # those that are made first, and their copy, are alike
    name = register(lambda: Own(ACTIONS[program.name], Box(-1, 1, (next(numbers),), np.float32)), 100)
    control = Control("gymnasium", name)

    def more() -> None:
        Classic(name, 9) if program is DQN else [Worker(control, 0) for _ in range(5)]

    with pytest.raises(ConfigError, match=r"have different numbers in an observation, [34] and [34]"):
        more()


TORCH = {  # what is set for the whole process, what sets it back, what is said
    "gradients": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), "True to False"),
    "numbers": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
        "torch.float32 to torch.float64",
    ),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None), "cpu to meta"),
}


@PROGRAMS
@pytest.mark.parametrize("what", TORCH)
@pytest.mark.parametrize("when", ["made", "stepped"])
def test_code_that_changes_torch_for_the_whole_process_is_refused(program: Program, what: str, when: str) -> None:
    change_torch, set_back, said = TORCH[what]

    def make() -> Own:
        if when == "made":
            change_torch()
        return Own(ACTIONS[program.name], after=lambda result, steps: (change_torch(), result)[1])

    try:
        line = refusal(program, make)
        assert f" from {said} for the whole process" in line
        assert line.count("env.") == 1
    finally:
        set_back()


@PROGRAMS
def test_code_that_leaves_the_current_folder_where_runs_are_written(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it is made, it is called back; in an episode, which is played again and again, it is refused."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    name = register(lambda: (os.chdir("elsewhere"), Own(ACTIONS[program.name]))[1], 50)
    TASKS[program.name].from_config(composed(program, name))
    assert Path.cwd() == tmp_path
    said = f"={name}: its code goes to the folder {tmp_path / 'elsewhere'}: back in {tmp_path}"
    assert caplog.text.count(said) == 1

    class Leaving(Own):
        def reset(self, **options: Any) -> Any:
            os.chdir(tmp_path / "elsewhere")
            return super().reset(**options)

    said = refusal(program, lambda: Leaving(ACTIONS[program.name]))
    assert f"its code changes the current folder from {tmp_path} to {tmp_path / 'elsewhere'} for the whole" in said


@PROGRAMS
def test_a_time_limit_that_is_none_is_named(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    for limit in (100_000, 10**9):
        TASKS[program.name].from_config(composed(program, register(lambda: Own(ACTIONS[program.name]), limit)))
    assert caplog.text.count("an episode may take ") == 1
    assert "an episode may take 1000000000 steps, and evaluations play whole episodes" in caplog.text


def test_torch_s_threads_are_set_back(caplog: pytest.LogCaptureFixture) -> None:
    threads = torch.get_num_threads()
    try:
        Classic(register(lambda: (torch.set_num_threads(threads + 1), Own(Discrete(2)))[1], 100), 1)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(threads)
    assert f"its code sets torch's threads to {threads + 1}: set back" in caplog.text


def test_an_environment_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(foreign_code, "SECONDS_UNTIL_WARNING", 0.05)

    def slow(result: tuple[Any, ...], steps: int) -> tuple[Any, ...]:
        deadline = time.monotonic() + 60
        while "has not answered" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        return result

    environment = Environment("env.game=slow", Own(Discrete(2), after=slow))
    environment.reset(0)
    environment.step(1)
    assert "env.game=slow has not answered for 0 s (step)" in caplog.text


@PROGRAMS
def test_one_that_hangs_when_it_is_closed_keeps_no_run_from_its_end(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    class Hanging(Own):
        def close(self) -> None:
            if (tmp_path / program.name).exists():  # not that of gymnasium's check, before the first step
                released.wait(60)

    monkeypatch.setattr(foreign_code, "SECONDS_UNTIL_WARNING", 0.02)
    folder = program.run_composed(tmp_path, composed(program, register(lambda: Hanging(ACTIONS[program.name]), 50)))
    released.set()
    assert summary(folder)["eval/return"] == 20.0
    assert "has not closed within 0 s: it is left open" in caplog.text


@PROGRAMS
def test_a_signal_is_heard_where_an_environment_hangs(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a thread of SAC's workers no exception of a signal's handler is raised: the process itself has to leave."""
    left = list[int]()
    released = threading.Event()

    def leave(code: int) -> None:
        left.append(code)
        released.set()

    def hang(result: tuple[Any, ...], steps: int) -> tuple[Any, ...]:
        if (tmp_path / program.name).exists() and not left:  # not while it is examined, before the first step
            os.kill(os.getpid(), signal.SIGTERM)
            released.wait(60)
        return result

    monkeypatch.setattr(foreign_code, "SECONDS_AFTER_SIGNAL", 0.1)
    monkeypatch.setattr(foreign_code, "SECONDS_UNTIL_WARNING", 0.1)
    monkeypatch.setattr(foreign_code.os, "_exit", leave)
    name = register(lambda: Own(ACTIONS[program.name], after=hang), 50)
    with pytest.raises(SystemExit):  # of the signal, now that the environment answers
        program.run_composed(tmp_path, composed(program, name))
    assert set(left) == {75}
    assert "has not answered for 0 s (step) after a signal: the process leaves without a checkpoint" in caplog.text


WITHOUT_GYMNASIUM_S_WRAPPERS = {
    "four values": ((np.zeros(3), 1.0, False, {}), "step returned 4 values, not (observation, reward, terminated, "),
    "nothing": (None, "step returned None, not (observation, reward, terminated, truncated, info)"),
    "a list": (
        [np.zeros(3), 1.0, False, False, {}],
        "step returned [array([0., 0., 0.]), 1.0, False, False, {}], not ",
    ),
}


@pytest.mark.parametrize("fault", WITHOUT_GYMNASIUM_S_WRAPPERS)
def test_what_a_step_returns_is_looked_at_whoever_made_the_environment(fault: str) -> None:
    result, said = WITHOUT_GYMNASIUM_S_WRAPPERS[fault]
    environment = Environment("env.game=bare", Own(Discrete(2), after=lambda *step: result))
    environment.reset(0)
    with pytest.raises(TrainingError) as error:
        environment.step(0)
    assert f"env.game=bare: {said}" in str(error.value)


# ------------------------------------------------------------------------------------- what gymnasium's own check finds


def remarks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "gymnasium says" in record.getMessage()]


@PROGRAMS
def test_what_gymnasium_s_check_finds_is_one_line(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """Warnings and what the check ended with; once in a process; and the run goes on."""
    wide = Box(-np.inf, np.inf, (3,), np.float32)
    name = register(lambda: Own(ACTIONS[program.name], wide, show=lambda steps: np.zeros(3, np.float64)), 50)
    for _ in range(2):
        TASKS[program.name].from_config(composed(program, name))
    (line,) = remarks(caplog)
    assert line.startswith(f"env.{'game' if program is DQN else 'task'}={name}: gymnasium says: ")
    assert "A Box observation space minimum value is -infinity. This is probably too low." in line
    assert "check_env fails: AssertionError: The first element returned by `env.reset()` is not within" in line
    assert "\n" not in line
    assert "\x1b" not in line


@PROGRAMS
def test_an_environment_as_it_should_be_needs_no_word(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    name = register(lambda: Own(ACTIONS[program.name]), 50)
    TASKS[program.name].from_config(composed(program, name))
    TASKS[program.name].from_config(program.compose())
    assert remarks(caplog) == []


def test_an_old_version_is_named_by_gymnasium(caplog: pytest.LogCaptureFixture) -> None:
    DqnTask.from_config(DQN.compose("env.game=CartPole-v0"))
    (line,) = remarks(caplog)
    assert line.startswith("env.game=CartPole-v0: gymnasium says: The environment CartPole-v0 is out of date.")


@PROGRAMS
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Hopper-v2", "The mujoco v2 and v3 based environments have been moved to the gymnasium-robotics project"),
        ("LunarLander-v2", "Environment version v2 for `LunarLander` is deprecated. Please use `LunarLander-v3`"),
        ("Hoper-v5", "Environment `Hoper` doesn't exist. Did you mean: `Hopper`?"),
        ("no_such_module:Hopper-v5", "No module named 'no_such_module'. Environment registration via importing"),
        ("two:colons:Hopper-v5", "ValueError: too many values to unpack"),
        ("", "Malformed environment ID"),
    ],
)
def test_what_gymnasium_says_of_an_id_is_the_line(program: Program, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^env.*: {said.replace('?', '.')}") as error:
        TASKS[program.name].from_config(composed(program, name))
    assert "\n" not in str(error.value)


def test_training_needs_no_opengl() -> None:
    """MuJoCo itself cannot be imported with a MUJOCO_GL that does not work."""
    code = (
        "from rl.sac.control import Control\n"
        "import logging; logging.basicConfig()\n"
        "env = Control('gymnasium', 'Hopper-v5').make()\n"
        "print(env.reset(0).shape, env.limit)\n"
    )
    environment = {**os.environ, "MUJOCO_GL": "nonsense", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert answer.stdout == "(11,) 1000\n", answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "MUJOCO_GL=nonsense does not work here (RuntimeError: " in answer.stderr


# ---------------------------------------------------------------------------------------------------------- time limits


class Ending(Own):
    """Says itself how an episode ends."""

    def __init__(self, actions: Space[Any], terminated: bool, truncated: bool) -> None:
        flags = terminated, truncated
        super().__init__(actions, after=lambda step, steps: (*step[:2], *(f and steps == 5 for f in flags), step[4]))


ENDS = [  # what the environment says at its fifth step, gymnasium's limit, what is learnt from
    (False, False, 5, False),
    (False, True, 90, False),
    (True, False, 90, True),
    (True, False, 5, True),  # both at once: the state is the end
    (True, True, 90, True),
]


@pytest.mark.parametrize(("terminated", "truncated", "limit", "expected"), ENDS)
def test_only_a_terminated_episode_s_last_state_has_no_value(
    terminated: bool, truncated: bool, limit: int, expected: bool
) -> None:
    """Of one that was cut, by gymnasium or by itself, the true last observation is learnt from."""
    for_dqn = Episodes(Classic(register(lambda: Ending(Discrete(2), terminated, truncated), limit), 1), 0, "test")
    for_dqn.begin()
    steps = []
    for _ in range(5):
        for_dqn.send(torch.tensor([1]))
        steps.append(for_dqn.recv())
    assert [step.terminated.tolist() for step in steps] == [[False]] * 4 + [[expected]]
    assert [step.ended.tolist() for step in steps] == [[]] * 4 + [[0]]
    assert steps[-1].returns == [5.0]
    assert not torch.equal(steps[-1].frames, steps[-1].first)
    name = register(lambda: Ending(ACTIONS["sac"], terminated, truncated), limit)
    worker = Worker(Control("gymnasium", name), 0)
    stepped = [worker.step(np.zeros(2, np.float32)) for _ in range(5)]
    assert [step.terminated for step in stepped] == [False] * 4 + [expected]
    assert [step.ended_episode for step in stepped] == [None] * 4 + [(5.0, 5)]
    assert not np.array_equal(stepped[-1].next_observation, worker.observation)


def test_without_a_time_limit_sac_needs_one_and_takes_it_from_the_options() -> None:
    assert "has no time limit: its evaluation might never end" in refusal(
        SAC, lambda: Own(ACTIONS["sac"], length=None), limit=None
    )
    name = register(lambda: Own(ACTIONS["sac"], length=None), None)
    task = SacTask.from_config(composed(SAC, name, "env.options={max_episode_steps:40}"))
    assert task.gamma == SacTask.from_config(composed(SAC, register(lambda: Own(ACTIONS["sac"]), 40))).gamma


@PROGRAMS
def test_a_time_limit_of_the_environment_s_own_wrapper_counts(program: Program) -> None:
    """Registered without a limit, or with a longer one."""
    for limit in (None, 90):
        name = register(lambda: TimeLimit(Own(ACTIONS[program.name], length=None), 40), limit)
        if program is DQN:
            assert Classic(name, 1).limit == 40
        else:
            same = SacTask.from_config(composed(SAC, register(lambda: Own(ACTIONS["sac"]), 40))).gamma
            assert SacTask.from_config(composed(SAC, name)).gamma == same


def test_every_environment_of_sac_s_sequence_needs_a_time_limit() -> None:
    names = [register(lambda: Own(ACTIONS["sac"], length=None), limit) for limit in (40, None)]
    stream = (
        "benchmark=continual_control benchmark.tasks=2 benchmark.steps=100 env_steps=200 random_steps=20 "
        f"benchmark.sequence=[{','.join(names)}]"
    )
    with pytest.raises(ConfigError, match=f"env.task={names[1]} has no time limit: its evaluation might never end"):
        SacTask.from_config(composed(SAC, names[0], *stream.split()))


class Lasting(Own):
    """By chance an episode ends after 10 steps with -100, or lasts until it is cut; the reward of a step is 1."""

    def __init__(self, chance: float) -> None:
        super().__init__(Discrete(2), show=lambda steps: np.zeros(3, np.float32), after=self.ends)
        self.chance = chance

    def reset(self, **options: Any) -> Any:
        shown = super().reset(**options)
        self.bad = self.np_random.random() < self.chance
        return shown

    def ends(self, result: tuple[Any, ...], steps: int) -> tuple[Any, ...]:
        end = bool(self.bad and steps == 10)
        return result[0], -100.0 if end else 1.0, end, False, {}


def played(make: Callable[[], Any], envs: int, steps: int | None, limit: int | None, seed: int = 0) -> dict[str, float]:
    """An evaluation of random play."""
    env = Episodes(Classic(register(make, limit), envs), seed, "eval")
    return play(lambda observations: torch.zeros(envs, dtype=torch.int64), env, steps, 1.0, "")


def test_an_episode_that_outlasts_the_evaluation_is_played_to_its_end() -> None:
    assert played(lambda: Lasting(0.0), 4, 2000, 1000) == {"eval/return": 1000.0, "eval/episodes": 4.0}
    assert played(lambda: Lasting(0.0), 3, None, 700) == {"eval/return": 700.0, "eval/episodes": 3.0}


def test_the_mean_is_that_of_all_episodes_that_begin_and_not_of_the_short_ones() -> None:
    """Half of the episodes give -91, half 30. Those that end within 20 steps are the bad ones alone."""
    numbers = [played(lambda: Lasting(0.5), 16, 16 * 20, 30, seed) for seed in range(20)]
    total = sum(row["eval/return"] * row["eval/episodes"] for row in numbers)
    count = sum(row["eval/episodes"] for row in numbers)
    assert count > 300
    # The deviation of one episode's return is 60.5.
    assert total / count == pytest.approx((30 - 91) / 2, abs=4 * 60.5 / count**0.5)


def test_an_episode_without_end_is_no_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not of the episodes that are under way, and not of the others, which are the short ones."""
    monkeypatch.setattr("rl.dqn.evaluation.PATIENCE", 50)
    assert played(lambda: Lasting(0.5), 4, 40, None) == {}
    assert "episodes did not end within 60 steps; set a time limit" in caplog.text
    folder = DQN.run_composed(tmp_path, composed(DQN, register(lambda: Own(Discrete(2), length=None))))
    assert not any(key.startswith("eval/") for row in rows(folder) for key in row)
    done = json.loads((folder / "DONE").read_text())
    assert "eval/return" not in done
    assert done["steps"] == 400


# -------------------------------------------------------------------------------------------------------------- resumed


def test_an_environment_that_is_random_beside_its_seed_begins_anew() -> None:
    """Its unfinished episode cannot be replayed: it may end earlier, after which it must not be stepped."""

    class Unstable(Own):
        def step(self, action: Any) -> Any:
            assert self.length is not None
            assert self.steps < self.length, "stepped beyond its end"
            return super().step(action)

    name = register(lambda: Unstable(Discrete(2), length=lengths[-1]), 100)
    lengths = [50]
    one = Episodes(Classic(name, 1), 0, "test")
    lengths = [3]
    other = Episodes(Classic(name, 1), 0, "test")
    one.begin()
    for _ in range(8):
        one.send(torch.tensor([0]))
        one.recv()
    assert not other.load_state_dict(one.state_dict())
    other.begin()
    other.send(torch.tensor([0]))
    assert other.recv().ended.tolist() == []
