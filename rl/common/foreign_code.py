"""Call the code of an environment, which may be anybody's: the process stays as it was, and what hangs is named.

What such code raises or warns of is shown on one line.
"""

import contextlib
import functools
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import gymnasium
import torch
from gymnasium.spaces import Space

from harness.config.errors import ConfigError, TrainingError
from harness.process.signals import EXIT_PREEMPTED, asked_to_leave

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_SHOWN_CHARACTERS = 300  # of a space or of another package's text that are shown in a message
SECONDS_UNTIL_WARNING = 30.0  # after which an environment that does not answer is named in the log
SECONDS_AFTER_SIGNAL = 10.0  # for which it may still answer after a signal, so that the step is finished and saved
SECONDS_BETWEEN_LOOKS = 1.0  # at the environments that do not answer
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # escape sequences that colour a terminal


# --------------------------------------------------------------------------------------- what it changes in the process


@contextlib.contextmanager
def process_as_before(name: str) -> Iterator[None]:
    """Refuse an environment whose code changes the whole process; set the number of torch's threads back.

    Raises:
        ConfigError: gradients are off, new tensors have another dtype or device, or the current folder is another one
            after this block.
    """
    before, threads = _process_state(), torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:  # on which sums depend
        log.warning("%s: its code sets torch's threads to %d: set back", name, torch.get_num_threads())
        torch.set_num_threads(threads)
    for (what, old), (_, new) in zip(before.items(), _process_state().items(), strict=True):
        if old != new:
            raise ConfigError(
                f"{name}: its code changes {what} from {old} to {new} for the whole process, in which the agent could "
                "not learn or be saved: let it set this back (`with torch.no_grad():`, `with contextlib.chdir(...):`)"
            )


def _process_state() -> dict[str, object]:
    return {
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "the current folder": _current_folder(),
    }


def _current_folder() -> str:
    """Return the current folder; an empty text if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@contextlib.contextmanager
def in_same_folder(name: str) -> Iterator[None]:
    """Go back to the current folder if the code within this block leaves it, as the run's own paths may be relative."""
    folder = _current_folder()
    try:
        yield
    finally:
        if folder and _current_folder() != folder:
            _say_that_it_leaves(name, _current_folder(), folder)
            os.chdir(folder)


@functools.cache
def _say_that_it_leaves(name: str, other: str, folder: str) -> None:
    """Log it once, as environments are made several times."""
    log.warning("%s: its code goes to the folder %s: back in %s", name, other, folder)


def without_drawing(function: Callable[[], T]) -> T:
    """Call a function that may import MuJoCo and return its value; if it fails, call it again with drawing turned off.

    MuJoCo cannot be imported if MUJOCO_GL names an OpenGL that does not work on this machine, although training draws
    nothing. A warning says that drawing was turned off. An environment that draws its observations reports itself that
    it cannot.
    """
    try:
        return function()
    except Exception as error:
        opengl = os.environ.get("MUJOCO_GL")
        if opengl is None:
            raise
        with _environment_variable_set("MUJOCO_GL", "disable"):
            value = function()  # raises again if something else was the cause
        log.warning("MUJOCO_GL=%s does not work here (%s): MuJoCo runs without drawing", opengl, error_text(error))
        return value


@contextlib.contextmanager
def _environment_variable_set(key: str, value: str) -> Iterator[None]:
    """Set an environment variable, which must exist, within this block."""
    old_value = os.environ[key]
    os.environ[key] = value
    try:
        yield
    finally:
        os.environ[key] = old_value


# ------------------------------------------------------------------------------------------------------- if it hangs

# For each thread that waits for an environment: since when (seconds), the environment's name, what it does.
_waiting: dict[int, tuple[float, str, str]] = {}


@contextlib.contextmanager
def answering(name: str, what: str) -> Iterator[None]:
    """Name an environment in the log if the call within this block takes long.

    The run goes on waiting for it, as some are slow; but `SECONDS_AFTER_SIGNAL` after a signal the process ends.
    """
    _start_watch()
    thread = threading.get_ident()
    _waiting[thread] = (time.monotonic(), name, what)
    try:
        yield
    finally:
        _waiting.pop(thread, None)


@functools.cache
def _start_watch() -> None:
    threading.Thread(target=_watch, name="environments that do not answer", daemon=True).start()


def _watch() -> None:
    """Look again and again for environments that do not answer, for as long as the process lives."""
    named = set[tuple[float, str, str]]()
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        asked = asked_to_leave()
        for call in list(_waiting.values()):
            since, name, what = call
            if asked is not None and time.monotonic() - max(asked, since) > SECONDS_AFTER_SIGNAL:
                log.warning(
                    "%s has not answered for %.0f s (%s) after a signal: the process leaves without a checkpoint; the "
                    "same command resumes from the last one",
                    name, SECONDS_AFTER_SIGNAL, what,
                )  # fmt: skip
                os._exit(EXIT_PREEMPTED)  # no exception reaches what hangs in somebody else's code, or in a thread
            if call not in named and time.monotonic() - since > SECONDS_UNTIL_WARNING:
                named.add(call)
                log.warning(
                    "%s has not answered for %.0f s (%s); the run waits for it. If it hangs, end the run: the same "
                    "command resumes from the last checkpoint",
                    name, SECONDS_UNTIL_WARNING, what,
                )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- what it says


def warning_texts(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return the texts of warnings, each on one line."""
    return [condensed(COLOURS.sub("", str(warning.message)).removeprefix("WARN: ")) for warning in caught]


def error_text(error: BaseException) -> str:
    """Return an error of another package's code on one line, with its type unless the text is clear without it."""
    text = condensed(COLOURS.sub("", str(error)))
    if isinstance(error, gymnasium.error.Error | ImportError | ConfigError | TrainingError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: Any) -> str:
    """Return a space or a value as text on one line."""
    return condensed(str(value) if isinstance(value, Space) else repr(value))


def condensed(text: str) -> str:
    """Return a text on one line, cut after `MAX_SHOWN_CHARACTERS` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]} ..."
