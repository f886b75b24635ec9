"""Checkpoint and exit on SIGTERM, SIGINT (Ctrl-C), SIGUSR1 and SIGUSR2 (Slurm's warnings)."""

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
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
LOOK, AGAIN = 0.5, 5.0  # seconds between looks at the driver of a worker, and between signals once it has ended
PATIENCE = 5.0  # seconds after a signal for which an evaluation may still come to its end
Handler = Callable[[int, FrameType | None], Any] | int | None


def exit_on_signals() -> None:
    """From now on a signal outside training (loading data, waiting for another run) exits with code 75.

    Other handlers (submitit's) stay; Ctrl-C keeps Python's.
    """
    _asked.clear()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _asked.append(time.monotonic())
    raise SystemExit(EXIT_PREEMPTED)


_asked: list[float] = []  # when signals came, on the monotonic clock


def asked_to_leave() -> float | None:
    """When the first signal came that asks this process to leave, on the monotonic clock; None: none has come."""
    return _asked[0] if _asked else None


def start_of_process(process: int) -> str:
    """When a process began, in the system's own count; empty where the system does not say or it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # one that waits to be buried has ended


def is_alive(process: int, started: str = "") -> bool:
    """Whether a process of this machine runs; `started`: as `start_of_process` said, as ids are used again."""
    if Path("/proc/self/stat").exists():
        now = start_of_process(process)
        return bool(now) and started in ("", now)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def leave_with(process: int, started: str = "") -> None:
    """From now on this process leaves when another one has ended: with a checkpoint if it trains, as on SIGTERM.

    A thread looks, as the system's own signal at a parent's end comes with the end of the parent's *thread*, and a
    worker's driver need not be its parent. The signal comes again every few seconds, since an exception that a handler
    raises may be lost in code that drops exceptions.

    Args:
        process: its id, on this machine.
        started: see `is_alive`.
    """

    def look() -> None:
        while is_alive(process, started):
            time.sleep(LOOK)
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(AGAIN)

    threading.Thread(target=look, daemon=True, name="leave_with").start()


class Preemption:
    """Notes the first signal so that the trainer can finish its step; a second Ctrl-C exits at once.

    Used as a context manager around training. Handlers are only installed in the main thread (Python allows no other).

    Attributes:
        received: the first signal that came, None before.
        at_once: called when a signal comes, where there is nothing to save; None where a step is to be finished first.
        when_slow: see `at_most`; None outside of it.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.at_once: Callable[[], NoReturn] | None = None
        self.when_slow: Callable[[], NoReturn] | None = None
        self._before: dict[signal.Signals, Handler] = {}
        self._again: threading.Timer | None = None
        self._again_at = math.inf  # on the monotonic clock
        self._requeue = False  # a warning, not a request to end the job

    def __enter__(self) -> Self:
        _asked.clear()
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT and number == signal.SIGINT:
            os._exit(130)
        self.received = self.received or signal.Signals(number)
        _asked.append(time.monotonic())
        self._requeue |= number in (signal.SIGUSR1, signal.SIGUSR2)
        if self.at_once is not None:
            self.at_once()
        if self.when_slow is None:
            return
        if self._again is None:
            self._send_again()
        elif time.monotonic() >= self._again_at:
            self.when_slow()

    def _send_again(self) -> None:
        """Let the signal come once more after `PATIENCE`, when what it has interrupted should have come to its end."""
        self._again_at = time.monotonic() + PATIENCE
        self._again = threading.Timer(PATIENCE, os.kill, (os.getpid(), signal.SIGTERM))
        self._again.daemon = True
        self._again.start()

    @contextlib.contextmanager
    def at_most(self, when_slow: Callable[[], NoReturn]) -> Iterator[None]:
        """Around what may take long: `when_slow` is called where it lasts `PATIENCE` longer than a signal's coming."""
        self.when_slow = when_slow
        if self.received is not None:
            self._send_again()
        try:
            yield
        finally:
            self.when_slow = None
            if self._again is not None:
                self._again.cancel()
                self._again = None

    def leave(self) -> NoReturn:
        """Exit with code 75, after the checkpoint is written.

        Under submitit a USR signal is passed on to submitit's handler, which puts the job back into the queue and ends
        the process. SIGTERM does not: that is `scancel`, or a pre-emption after which Slurm itself requeues.
        """
        if self._requeue and "SUBMITIT_EXECUTOR" in os.environ:
            for number in (signal.SIGUSR2, signal.SIGUSR1):  # submitit's default, and the other that sites use
                handler = self._before.get(number)
                if callable(handler):
                    handler(number, None)
        raise SystemExit(EXIT_PREEMPTED)
