"""What a command prints: a reader that stops early (`| head`) or a closed stream (`2>&-`) does not end the command."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class KeptStream:
    """A text stream whose reader may leave: what is written from then on is dropped.

    Other errors, of a full disk for example, are raised as always.

    Args:
        stream: the stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text, and return its length, as if it were written, also if the reader has left."""
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._write_nowhere()
            return len(text)

    def flush(self) -> None:
        """Write what the buffer holds; a reader that has left is no error."""
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._write_nowhere()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _write_nowhere(self) -> None:
        """Lead the stream to nowhere, also for what its buffer still holds, which Python writes at its end."""
        with contextlib.suppress(OSError, ValueError):  # a stream without a file has no such buffer
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)


def keep_output() -> None:
    """Let this process go on where the reader of its stdout or stderr leaves, and where one of them is closed.

    A closed stream's number is taken by the null device: else the next file that is opened, a checkpoint for example,
    would get it, and what a library in C prints would go into that file. Characters that the stream's encoding does not
    have are written as escapes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                _occupy(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115 (open as long as the process)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, KeptStream):
            with contextlib.suppress(AttributeError, ValueError):  # a stream of a test, which encodes nothing
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, KeptStream(stream))


@contextlib.contextmanager
def system_errors_explained() -> Iterator[None]:
    """Context around a command: a file that the system does not let it read or write is one line, not a traceback.

    Raises:
        SystemExit: with exit code 1, after the line; after Ctrl-C with 130, without one.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno is None:  # raised by a library, and not by the system
            raise
        target = error.filename or "the output"
        with contextlib.suppress(OSError):
            print(f"error: cannot read or write {target}: {error.strerror}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _occupy(number: int) -> None:
    """Open the null device with a number that no file has."""
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
