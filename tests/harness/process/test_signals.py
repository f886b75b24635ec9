"""A signal ends the step, writes a checkpoint and leaves with code 75; the same command resumes to the same numbers."""

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.process.signals import EXIT_PREEMPTED, Preemption
from harness.training import loop as loop_module
from harness.training.loop import Loop
from tests.programs import LONG, SMALL, VISION, assert_same, final_state, only_run, wait_for, wait_until_held
from tests.zygote import Zygote


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.slow)])
def test_a_signal_costs_nothing(name: str, tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    if signal.getsignal(signal.Signals[name]) is signal.SIG_IGN:
        pytest.skip(f"the tests run under nohup, where {name} ends no program")
    options = SMALL.tiny(*LONG, "checkpoint.every_seconds=1000", "cache=off")
    child = zygote.start(tmp_path, "vision.train", *options, before="holds")
    wait_until_held(child)
    os.kill(child, signal.Signals[name])
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == EXIT_PREEMPTED, answer.err
    assert f"stopped by {name} at step" in answer.err
    run = only_run(tmp_path / "runs")
    assert not (run / "DONE").exists()
    assert not (run / "FAILED").exists()
    stopped = final_state(run)["step"]  # the checkpoint is of the step at which it left, not of a phase's end
    assert f"at step {stopped}" in answer.err
    again = zygote.run(tmp_path, "vision.train", *options)
    assert again.code == 0
    assert f"resumed at step {stopped}" in again.err
    assert_same(run, calm)


def test_the_second_ctrl_c_leaves_at_once(tmp_path: Path, zygote: Zygote) -> None:
    options = VISION.tiny("model.width=128", "batch_size=1280", "epochs=100", "cache=off", "benchmark.ratio=100")
    child = zygote.start(tmp_path, "vision.train", *options)
    wait_for(lambda: list(tmp_path.glob("runs/vision/*/env.json")))
    stat = Path(f"/proc/{child}/stat")

    def seconds() -> float:  # of the processor, which a busy machine gives late
        ticks = stat.read_text().rsplit(") ", 1)[1].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    before = seconds()
    wait_for(lambda: seconds() > before + 0.3)  # into the first step, which takes a second or more
    wait_for(
        lambda: os.kill(child, signal.SIGINT) or stat.read_text().split()[2] == "Z"
    )  # Python sees two between two kernels
    answer = zygote.end(tmp_path, child)
    assert answer.code == 130, answer.err
    assert not list(tmp_path.glob("runs/vision/*/checkpoints/*"))


def test_a_sweep_stops_as_a_whole_and_goes_on(tmp_path: Path, zygote: Zygote) -> None:
    options = SMALL.tiny("method=base,fire", "epochs=3", "-m")
    child = zygote.start(tmp_path, "vision.train", *options, before="holds")
    wait_until_held(child)
    os.kill(child, signal.SIGTERM)
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == EXIT_PREEMPTED
    assert len(list(tmp_path.glob("runs/vision/*"))) == 1, "the second job was not begun"
    again = zygote.run(tmp_path, "vision.train", *options)
    assert again.code == 0
    assert len(list(tmp_path.glob("runs/vision/*/DONE"))) == 2


def test_submitit_s_own_handler_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []

    def requeue(number: int, frame: object) -> None:
        signals.append(number)
        raise SystemExit(144)

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        for executor, name, code in (("local", "SIGUSR1", 144), ("local", "SIGTERM", 75), (None, "SIGUSR2", 75)):
            monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
            if executor:
                monkeypatch.setenv("SUBMITIT_EXECUTOR", executor)
            with Preemption() as preemption:
                os.kill(os.getpid(), signal.Signals[name])
                with pytest.raises(SystemExit) as left:
                    preemption.leave()
            assert left.value.code == code
        assert signals == [signal.SIGUSR2]
        assert signal.getsignal(signal.SIGUSR2) is requeue, "handlers are put back"
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_terminal_that_is_closed_costs_nothing_and_under_nohup_training_goes_on() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, received in ((signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, None)):
            signal.signal(signal.SIGHUP, handler)
            with Preemption() as preemption:
                signal.raise_signal(signal.SIGHUP)
                assert preemption.received == received
            assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_at_a_boundary_a_signal_leaves_at_once() -> None:
    """What was done since the phase's end is done again; within a phase the step is finished and saved first."""
    learner, saved = SimpleNamespace(step=7, phase=0, seconds=0.0), []
    with Loop(learner, None, 10, "", shown=False) as loop:  # resumed at a phase's end
        with pytest.raises(SystemExit) as left:
            signal.raise_signal(signal.SIGTERM)
        assert left.value.code == EXIT_PREEMPTED
    with Loop(learner, None, 10, "", shown=False) as loop:
        loop.advance()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.end_step(lambda: saved.append("within"), ended=False)
    with Loop(learner, None, 10, "", shown=False) as loop:
        loop.advance()
        loop.end_step(lambda: saved.append("end"), ended=True)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert saved == ["within", "end"]


@pytest.mark.parametrize("ended", [False, True])
def test_a_signal_during_a_save_counts(ended: bool) -> None:
    """Also in the save that ends a phase, behind which a sweep's next job or the second phase would begin."""
    learner = SimpleNamespace(step=7, phase=0, seconds=0.0)
    with Loop(learner, None, 10, "", shown=False) as loop:
        loop.max_over_ranks = lambda due, received=None: [due] if received is None else [1, received]
        loop.advance()
        with pytest.raises(SystemExit) as left:
            loop.end_step(lambda: signal.raise_signal(signal.SIGTERM), ended)
    assert left.value.code == EXIT_PREEMPTED


def test_the_second_ctrl_c_leaves_after_another_signal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    with Preemption():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert codes == []
        signal.raise_signal(signal.SIGINT)
        assert codes == [130]


def test_slow_checkpoints_come_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, learner = SimpleNamespace(now=0.0), SimpleNamespace(step=7, phase=0, seconds=0.0)
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for every, seconds, following in ((60, 1, 60), (60, 6, 306), (0, 6, 0)):
        clock.now, run = 0.0, SimpleNamespace(every_seconds=every, next_checkpoint=0.0, checkpoint_due=True)
        with Loop(learner, run, 10, "", shown=False) as loop:
            loop.end_step(lambda by=seconds: setattr(clock, "now", clock.now + by), ended=False)
        assert run.next_checkpoint == following


def test_a_save_that_fails_slowly_is_not_repeated_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, learner = SimpleNamespace(now=0.0), SimpleNamespace(step=7, phase=0, seconds=0.0)
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def save() -> None:
        clock.now += 90
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    run = SimpleNamespace(every_seconds=60, next_checkpoint=0.0, checkpoint_due=True, folder="run")
    with Loop(learner, run, 10, "", shown=False) as loop:
        for _ in range(2):
            loop.end_step(save, ended=False)
            assert run.next_checkpoint - clock.now == 20 * 60
        for _ in range(2):  # there is room again
            loop.end_step(lambda: setattr(clock, "now", clock.now + 0.1), ended=False)
        assert run.next_checkpoint - clock.now == pytest.approx(60, abs=0.2)


@pytest.mark.parametrize(
    ("saves", "following"),
    [
        ([0.01, 0.01, 3600, 0.01], 60),  # one of four hung for an hour
        ([0.01, 3600], 0.5),  # it was the last: the next is due at once
        ([3600], 20 * 60),  # it was the first: no other is known, so the bound decides
        ([3600, 0.01, 0.01], 60),
        ([600, 600, 600], 20 * 60),  # all are slow
        ([6, 6, 6], 300),
    ],
)
def test_one_slow_save_does_not_push_the_next_away(
    saves: list[float], following: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, learner = SimpleNamespace(now=0.0), SimpleNamespace(step=7, phase=0, seconds=0.0)
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    run = SimpleNamespace(every_seconds=60, next_checkpoint=0.0, checkpoint_due=True)
    with Loop(learner, run, 10, "", shown=False) as loop:
        for seconds in saves:
            loop.end_step(lambda by=seconds: setattr(clock, "now", clock.now + by), ended=False)
    assert run.next_checkpoint - clock.now == pytest.approx(following, abs=0.1)
