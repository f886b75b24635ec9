"""The log and the progress bar of a run: log lines do not break the bar, and a failed write does not end the run."""

import contextlib
import logging
import sys
import threading
from typing import Any

from tqdm import tqdm

tqdm.set_lock(threading.RLock())  # tqdm's default also takes a system semaphore, which a killed process leaves behind


class Stderr:
    """The process's stderr, which drops what cannot be written: a log on a full disk must not end a run."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class TqdmHandler(logging.Handler):
    """Writes records to stderr above the progress bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=Stderr())
        except Exception:
            self.handleError(record)


LOGGERS = ("fire_core", "harness", "vision", "language", "rl", "__main__")


def show_log() -> None:
    """Show what the project logs, from INFO on, in this process (once, however often it is called)."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, TqdmHandler) for handler in logger.handlers):
            handler = TqdmHandler()
            handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%H:%M:%S"))
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def progress_bar(total: int, done: int, title: str, shown: bool = True) -> "tqdm[Any]":
    """Return a progress bar over the steps of the whole run, with the time left.

    Args:
        total: steps of the run.
        done: steps that were made before, by an interrupted process or in a shared first phase.
        title: text before the bar.
        shown: False returns a bar that prints nothing.
    """
    return tqdm(
        total=total,
        initial=done,
        desc=title,
        unit="step",
        disable=not shown,
        file=Stderr(),
        mininterval=0.3 if sys.stderr.isatty() else 15,  # seconds; each update is a line of its own in a log file
        dynamic_ncols=True,
    )


def show(bar: "tqdm[Any]", **numbers: object) -> None:
    """Show the newest numbers beside the bar; floats with three decimals."""
    bar.set_postfix({k: f"{v:.3f}" if isinstance(v, float) else v for k, v in numbers.items()}, refresh=False)
