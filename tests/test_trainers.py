"""The four trainers say the same words in the same order, and take a step in one place."""

import copy
import importlib
import inspect
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.run import checkpoint
from tests.programs import DQN, LANGUAGE, SAC, SMALL, rows, same

PROGRAMS = {"vision.train": SMALL, "language.train": LANGUAGE, "rl.dqn.train": DQN, "rl.sac.train": SAC}
SHORT = {"rl.sac.train": ("env_steps=120", "eval_every=60", "random_steps=40")}
WORDS = {
    "train": ["task", "run", "state", "stop=None"],
    "begin_phase": ["task", "learner", "index", "run"],
    "act": ["task", "learner", "run", "firing=None"],
    "train_step": ["task", "learner", "batch", "acts"],
}
AGENTS = ("rl.dqn.train", "rl.sac.train")
OF_AGENTS = {
    "interact": ["task", "learner", "acts"],
    "choose_actions": ["task", "learner"],
    "learn": ["task", "learner", "acts"],
    "remember": ["task", "learner", "actions", "stepped"],
    "restart": ["task", "learner", "context=None"],
}


LOOP = (
    "start(task, learner, ",
    "write_checkpoint = functools.partial(learner.save, ",
    "Loop(learner, run, task.total_steps, title, ",
    "for index in range(learner.phase, stop or len(task.phases)):",
    "not learner.optimizers:",
    "begin_phase(task, learner, index, run)",
    "task.method_acts_in(index), task.phase_end(index)",
    "learner.method.watch(learner.net)",
    "loop.advance(",
    "ended = learner.step ",
    "loop.read_clock()",
    "learner.row = make_row(",
    "act_after_row(learner, make_context(",
    "run.log(learner.row)",
    "if firing := ask_trigger(task, learner, loss):",
    "act(task, learner, run, firing)",
    "loop.end_step(write_checkpoint, ended)",
    "return learner.summary()",
)
STEP = (
    "backward(",
    "learner.method.penalty(learner.net)",
    "backward(",
    "learner.method.before_step(learner.net, context)",
    "step(",
    "learner.method.after_step(learner.net, context)",
)


INTERACT = (
    "actions = choose_actions(task, learner)",
    ".send(actions)",
    "if learner.decisions(task) >",
    "loss = learn(task, learner, acts)",
    "stepped = learner.",
    "learner.step += config.num_envs",
    "learner.phase_step += config.num_envs",
    "remember(task, learner, actions, stepped)",
)
BEGIN_PHASE = (
    "seeding.seed_everything(seeding.derive(",
    "learner.phase, learner.phase_step = index, 0",
    "acts_at_boundaries(",
    "act(task, learner, run)",
    "learner.clear_sums()",
)
LINES = {"train": LOOP, "train_step": STEP, "begin_phase": BEGIN_PHASE}
BODIES = [(trainer, function, lines) for trainer in PROGRAMS for function, lines in LINES.items()] + [
    (trainer, "interact", INTERACT) for trainer in AGENTS
]


def arguments(module: ModuleType, name: str) -> list[str]:
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters), f"{module.__name__}.{name}"
    return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]


@pytest.mark.parametrize("trainer", PROGRAMS)
def test_the_same_functions_with_the_same_arguments(trainer: str) -> None:
    module = importlib.import_module(trainer)
    words = WORDS | (OF_AGENTS if trainer in AGENTS else {})
    assert {name: arguments(module, name) for name in words} == words


@pytest.mark.parametrize(("trainer", "function", "lines"), BODIES, ids=[f"{t} {f}" for t, f, _ in BODIES])
def test_the_same_lines_in_the_same_order(trainer: str, function: str, lines: tuple[str, ...]) -> None:
    """One way to the first phase, to a phase's end, to clock and row, around the backward passes, and of a decision."""
    left = inspect.getsource(getattr(importlib.import_module(trainer), function))
    for line in lines:
        before, found, left = left.partition(line)
        assert found, f"{trainer}.{function} has not {line!r} at its place, after {before[-200:]!r}"


@pytest.mark.parametrize("trainer", AGENTS)
def test_an_agent_learns_and_moves_its_targets_before_it_counts(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The updates of a decision learn from the transitions before it; its own are stored last."""
    module, program = importlib.import_module(trainer), PROGRAMS[trainer]
    task = module.PROGRAM.make_task(program.compose("method=base", *SHORT.get(trainer, ())))
    learner = importlib.import_module(trainer.replace("train", "learner")).Learner.new(task)
    real_learn, real_remember = module.learn, module.remember
    moves: list[bool] = []  # for each call of `learn`, whether it moved the targets

    def state() -> tuple[int, int, list[int], Any]:
        targets = {name: target.state_dict() for name, target in learner.net.targets.items()}
        return learner.step, learner.phase_step, list(learner.replay.written), copy.deepcopy(targets)

    def learn(*arguments: Any) -> Any:
        *counts, targets = state()
        loss = real_learn(*arguments)
        *counts_after, targets_after = state()
        assert counts_after == counts == list(before[:-1])
        moves.append(not same(targets, targets_after))
        at_end_of_learning.append(targets_after)
        return loss

    def remember(*arguments: Any) -> None:
        step, phase_step, written, targets = state()
        assert (step, phase_step) == tuple(count + task.config.num_envs for count in before[:2])
        assert written == before[2]
        assert same(targets, at_end_of_learning[-1])
        real_remember(*arguments)

    monkeypatch.setattr(module, "learn", learn)
    monkeypatch.setattr(module, "remember", remember)
    module.begin_phase(task, learner, 0, None)
    while learner.step < 120:
        before = state()
        at_end_of_learning = [before[-1]]
        module.interact(task, learner, False)
        step, phase_step, written, targets = state()
        assert (step, phase_step) == tuple(count + task.config.num_envs for count in before[:2])
        assert all(now > count for now, count in zip(written, before[2], strict=True))
        assert same(targets, at_end_of_learning[-1])
    learner.close()
    if trainer == "rl.sac.train":
        task.close()  # its environments of evaluation
    assert any(moves)


@pytest.mark.parametrize("trainer", ["vision.train", "language.train"])
def test_a_schedule_is_the_task_s(trainer: str) -> None:
    """Agents have a constant rate."""
    source = inspect.getsource(importlib.import_module(trainer).train)
    assert "set_rate_factor(learner.optimizer, task.rate_factor(index, learner.phase_step))" in source


@pytest.mark.parametrize("trainer", PROGRAMS)
def test_backward_is_reached_from_train_step_alone(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run of a method with a penalty, whose gradient is the step's too."""
    program, callers, real = PROGRAMS[trainer], list[set[tuple[str, str]]](), torch.autograd.backward

    def backward(*args: object, **kwargs: object) -> None:
        callers.append({(Path(frame.filename).stem, frame.name) for frame in traceback.extract_stack()})
        real(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", backward)
    program.run(tmp_path / "runs", "method=l2init", "cache=off", f"paths.data={tmp_path}/data", *SHORT.get(trainer, ()))
    assert len(callers) > 20
    assert all(("train", "train_step") in frames for frames in callers)


def test_a_first_phase_of_another_format_is_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT - 1)
        SMALL.run(tmp_path / "runs", "method=base")
    run = SMALL.run(tmp_path / "runs", "method=fire")
    said = [record.getMessage() for record in caplog.records if "another version" in record.getMessage()]
    assert len(said) == 1
    assert rows(run) == rows(SMALL.run(tmp_path / "anew", "method=fire"))
