"""Stop politely when the machine is taken away: SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm's warning)."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Self

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: start the same command again and it goes on
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
Handler = Callable[[int, FrameType | None], Any] | int | None


class Preemption:
    """Notes the first signal so that the trainer can finish its step; a second Ctrl-C leaves at once.

    Used as a context manager around training. Handlers are only installed in the main thread (a sweep may run jobs in
    others, where Python does not allow it).
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            os._exit(130)
        self.received = signal.Signals(number)

    def leave(self) -> NoReturn:
        """Leave after the checkpoint is written: through the launcher's own handler (submitit requeues), else exit."""
        assert self.received is not None
        before = self._before.get(self.received)
        if callable(before) and self.received != signal.SIGINT:
            before(self.received, None)
        raise SystemExit(EXIT_PREEMPTED)
