"""User-facing errors: shown as one line, without a traceback."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """An option, a file or a package is not what the program needs; the message names it and what is accepted."""


class TrainingError(RuntimeError):
    """Training cannot continue (a loss that is not finite, say); the message says where it stopped."""


def one_line(error: Exception) -> str:
    """The first line of what an error says, or its type."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def near(name: str, accepted: Iterable[str]) -> str:
    """The accepted names, and before them the one that is nearest to a name."""
    accepted = list(accepted)
    nearest = difflib.get_close_matches(name, accepted, 1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    return f"{hint}; accepted: {', '.join(accepted)}" if accepted else hint
