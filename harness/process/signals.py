"""Checkpoint and exit on SIGTERM, SIGINT (Ctrl-C), SIGHUP, SIGUSR1 and SIGUSR2.

SIGHUP comes when the terminal is closed or the connection to it is lost, SIGUSR1 and 2 are Slurm's warnings.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the same command, started again, resumes
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
POLL_SECONDS = 0.5  # between looks at whether a worker's driver is alive
REPEAT_SECONDS = 5.0  # between the signals that a worker sends itself once its driver has ended
PATIENCE = 5.0  # seconds after a signal for which an evaluation may still run
Handler = Callable[[int, FrameType | None], Any] | int | None


def exit_on_signals() -> None:
    """Make each of SIGNALS outside of training (while data load, or another run is waited for) exit with code 75.

    Only default handlers are replaced: those of submitit, and Python's for Ctrl-C, stay.
    """
    _asked.clear()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    _asked.append(time.monotonic())
    raise SystemExit(EXIT_PREEMPTED)


_asked: list[float] = []  # when signals came, on the monotonic clock


def asked_to_leave() -> float | None:
    """Return when the first signal came that asks this process to leave, in seconds of `time.monotonic`, or None."""
    return _asked[0] if _asked else None


def start_of_process(process: int) -> str:
    """Return when a process began, in the system's own count; empty if it has ended or the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # Z, X: a zombie, or dead


def is_alive(process: int, started: str = "") -> bool:
    """Return whether a process of this machine runs.

    Args:
        process: its id.
        started: what `start_of_process` returned for it. The system gives ids of ended processes to new ones, which
            have another start. Empty: any process with this id counts.
    """
    if Path(f"/proc/{process}/stat").exists():
        started_now = start_of_process(process)
        return bool(started_now) and started in ("", started_now)
    try:  # no /proc, or one that hides other users' processes (mounted with hidepid)
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def leave_with(process: int, started: str = "") -> None:
    """Make this process leave once another one has ended, as on SIGTERM: with a checkpoint if it trains.

    A thread watches the other process. Linux can send a signal when a parent ends, but it does so at the end of the
    parent's *thread*, and a worker's driver need not be its parent. The thread repeats the signal every few seconds,
    since an exception that a signal handler raises may be lost in code that drops exceptions.

    Args:
        process: id of the other process, on this machine.
        started: what `start_of_process` returned for it; see `is_alive`.
    """

    def watch() -> None:
        while is_alive(process, started):
            time.sleep(POLL_SECONDS)
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(REPEAT_SECONDS)

    threading.Thread(target=watch, daemon=True, name="leave_with").start()


class Preemption:
    """Notes the first signal so that the trainer can finish its step; a second Ctrl-C exits at once.

    Used as a context manager around training. Handlers are only installed in the main thread (Python allows no other).

    Attributes:
        received: the first signal that came; None before.
        at_once: called as soon as a signal comes, while there is nothing to save; None while a step must be finished
            first.
        when_slow: called if a block within `limited_after_signal` runs too long after a signal; None outside of such
            a block.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.at_once: Callable[[], NoReturn] | None = None
        self.when_slow: Callable[[], NoReturn] | None = None
        self._previous_handlers: dict[signal.Signals, Handler] = {}
        self._repeat: threading.Timer | None = None  # sends the signal once more
        self._repeat_at = math.inf  # seconds of time.monotonic
        self._interrupts = 0  # how often Ctrl-C was pressed
        self._requeue = False  # whether SIGUSR1 or 2 came, by which Slurm warns of a job's end

    def __enter__(self) -> Self:
        _asked.clear()
        if threading.current_thread() is threading.main_thread():
            under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # the run goes on without its terminal
            for number in SIGNALS:
                if not (number == signal.SIGHUP and under_nohup):
                    self._previous_handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: remember it, and leave if nothing is left to save or a slow block has had its time."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            os._exit(130)
        self.received = self.received or signal.Signals(number)
        _asked.append(time.monotonic())
        self._requeue |= number in (signal.SIGUSR1, signal.SIGUSR2)
        if self.at_once is not None:
            self.at_once()
        if self.when_slow is None:
            return
        if self._repeat is None:
            self._send_again()
        elif time.monotonic() >= self._repeat_at:
            self.when_slow()

    def _send_again(self) -> None:
        """Send SIGTERM to this process after `PATIENCE` seconds, by which time the running block should have ended."""
        self._repeat_at = time.monotonic() + PATIENCE
        self._repeat = threading.Timer(PATIENCE, os.kill, (os.getpid(), signal.SIGTERM))
        self._repeat.daemon = True
        self._repeat.start()

    @contextlib.contextmanager
    def limited_after_signal(self, when_slow: Callable[[], NoReturn]) -> Iterator[None]:
        """Return a context around a block that may take long.

        Without a signal the block has no limit. Once a signal has come, before the block or in it, the block may take
        `PATIENCE` more seconds; then `when_slow` is called, in the main thread's signal handler. Such blocks cannot be
        nested.

        Args:
            when_slow: leaves the process.
        """
        self.when_slow = when_slow
        if self.received is not None:
            self._send_again()
        try:
            yield
        finally:
            self.when_slow = None
            if self._repeat is not None:
                self._repeat.cancel()
                self._repeat = None

    def leave(self) -> NoReturn:
        """Exit with code 75, after the checkpoint is written.

        Under submitit a USR signal is passed on to submitit's handler, which puts the job back into the queue and ends
        the process. SIGTERM does not: that is `scancel`, or a pre-emption after which Slurm itself requeues.
        """
        if self._requeue and "SUBMITIT_EXECUTOR" in os.environ:
            for number in (signal.SIGUSR2, signal.SIGUSR1):  # submitit's default, and the other that sites use
                handler = self._previous_handlers.get(number)
                if callable(handler):
                    handler(number, None)
        raise SystemExit(EXIT_PREEMPTED)
