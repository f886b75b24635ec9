"""Argument checks shared by the models, so that a wrong option gives one clear line."""


def check_positive(**values: int) -> None:
    """Refuse sizes that are not whole numbers of at least one.

    Args:
        **values: the constructor's arguments by name.

    Raises:
        ValueError: naming the first argument at fault and its value.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among `choices`.

    Raises:
        ValueError: naming the argument, its value and the accepted ones.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
