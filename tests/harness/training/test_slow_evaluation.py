"""A signal within a long evaluation: the run leaves within seconds, and resumes to the same numbers."""

import functools
import importlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.process import signals
from harness.process.signals import EXIT_PREEMPTED
from harness.training.loop import Loop
from tests.programs import DQN, LANGUAGE, SAC, SMALL, assert_same, lines

NAPS = 3000  # of a hundredth of a second: what a slow evaluation would take
# What an evaluation calls for each of its batches, or turns.
WITHIN = {
    "vision": (SMALL, "vision.phase.score"),
    "language": (LANGUAGE, "language.phase.own_batches"),
    "dqn": (DQN, "rl.dqn.phase.play"),
    "sac": (SAC, "rl.sac.phase.play_episodes"),
}


SHORT = {
    "language": ("benchmark.iterations=[12,12]", "benchmark.checkpoints=[6]"),
    "dqn": ("total_steps=240", "midpoint=120", "eval.every=60"),
    "sac": ("env_steps=200", "eval_every=50", "random_steps=40"),
}


def slow(function: Callable[..., Any], naps: list[int], ready: Callable[[], bool]) -> Callable[..., Any]:
    """The same function, which gets a signal and then takes half a minute, once the run is `ready`."""

    def slowed(*arguments: Any, **named: Any) -> Any:
        if ready() and not naps:
            signal.raise_signal(signal.SIGTERM)
            for number in range(NAPS):
                naps.append(number)
                time.sleep(0.01)
        return function(*arguments, **named)

    return slowed


def lines_at_least(runs: Path, number: int) -> bool:
    return lines(runs) >= number


@pytest.mark.parametrize("name", WITHIN)
def test_a_signal_within_a_long_evaluation_is_heard(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, place = WITHIN[name]
    options = ("checkpoint.every_seconds=0.2", "cache=off", *SHORT.get(name, ()))
    undisturbed = program.run(tmp_path / "undisturbed", *options)
    monkeypatch.setattr(signals, "PATIENCE", 0.1)
    module, function = place.rsplit(".", 1)
    imported, naps = importlib.import_module(module), list[int]()
    disturbed = tmp_path / "disturbed"
    with monkeypatch.context() as patched:
        has_a_row = functools.partial(lines_at_least, disturbed, 1)
        patched.setattr(imported, function, slow(getattr(imported, function), naps, has_a_row))
        with pytest.raises(SystemExit) as left:
            program.run(disturbed, *options)
    assert left.value.code == EXIT_PREEMPTED
    assert 0 < len(naps) < NAPS, "it was left before its end"
    (folder,) = (disturbed / program.name).glob("*-s0-*")
    assert not (folder / "DONE").exists()
    assert not (folder / "FAILED").exists()
    assert_same(program.run(disturbed, *options), undisturbed)


def sleep_long() -> None:
    for _ in range(NAPS):
        time.sleep(0.01)


def loop() -> Loop:
    """A loop of a run that has made steps."""
    made = Loop(SimpleNamespace(step=7, phase=0, seconds=0.0), None, 10, "", shown=False)  # type: ignore[arg-type]
    return made


def test_an_evaluation_that_ends_soon_is_waited_for_and_saved() -> None:
    saved: list[str] = []
    with loop() as running:
        running.advance()
        with running.evaluation():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.05)
        with pytest.raises(SystemExit):
            running.end_step(lambda: saved.append("saved"), ended=False)
    assert saved == ["saved"]


def test_a_signal_of_before_gives_an_evaluation_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came within a step that took longer than our patience: a short evaluation still ends, a long one does not."""
    monkeypatch.setattr(signals, "PATIENCE", 60.0)  # no machine takes so long for the short ones
    with loop() as running:
        running.advance()
        signal.raise_signal(signal.SIGTERM)
        two_minutes_later = SimpleNamespace(monotonic=lambda: time.monotonic() + 120)
        monkeypatch.setattr(signals, "time", two_minutes_later)
        for _ in range(2):
            with running.evaluation():
                pass
        monkeypatch.setattr(signals, "PATIENCE", 0.01)
        with running.evaluation(), pytest.raises(SystemExit):
            sleep_long()


def test_a_signal_outside_of_an_evaluation_waits_for_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE", 0.05)
    with loop() as running:
        running.advance()
        with running.evaluation():
            pass
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
        signal.raise_signal(signal.SIGTERM)  # one of a worker's driver, which comes again and again
        with pytest.raises(SystemExit):
            running.end_step(lambda: None, ended=False)
