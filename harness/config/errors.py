"""User-facing errors: shown as one line, without a traceback."""


class ConfigError(ValueError):
    """An option, a file or a package is not what the program needs; the message names it and what is accepted."""


class TrainingError(RuntimeError):
    """Training cannot continue (a loss that is not finite, say); the message says where it stopped."""


def one_line(error: Exception) -> str:
    """The first line of what an error says, or its type."""
    return str(error).strip().split("\n")[0] or type(error).__name__
