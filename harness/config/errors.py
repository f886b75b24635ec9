"""User-facing errors: shown as one line, without a traceback."""

import difflib
from collections.abc import Iterable

EXIT_CONFIG, EXIT_TRAINING = 2, 3  # exit codes of a program that ended with one of these errors


class ConfigError(ValueError):
    """An option, a file or a package is not what the program needs; the message names it and what is accepted."""


class TrainingError(RuntimeError):
    """Training cannot continue (no room for a checkpoint, say); the message says where it stopped."""


class Diverged(TrainingError):
    """A loss, weight, action or activation is not finite. It is a result of the run's options, as a score is."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has no message."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def near(name: str, accepted: Iterable[str]) -> str:
    """Return the end of a message that refuses a name: `; accepted: fire, snp`, after a hint at the nearest of them.

    Args:
        name: the name that is refused.
        accepted: the names that are accepted; if there are none, the text is empty.
    """
    accepted = list(accepted)
    nearest = difflib.get_close_matches(name, accepted, 1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    return f"{hint}; accepted: {', '.join(accepted)}" if accepted else hint
