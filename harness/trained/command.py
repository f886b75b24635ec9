"""The command line of a program that uses a trained run: `python -m <module> RUN option=value ...`."""

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fire_core.ranges import problem
from fire_core.tools.output import keep_output
from harness.config.errors import ConfigError, TrainingError, near

T = TypeVar("T")
EXIT_CONFIG, EXIT_INTERRUPTED = 2, 130


def run_command(main: Callable[[str, T], None], options: type[T], usage: str) -> None:
    """Call `main` with the run folder and the options of the command line; an error is one line.

    Args:
        main: takes the folder and the options.
        options: a dataclass, each field with a default and with what it accepts (`fire_core.ranges`).
        usage: what `--help` prints.
    """
    keep_output()
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & {*words}:
        print(usage.strip())
        return
    try:
        main(*read_words(words, options))
    except (ConfigError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_CONFIG) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def read_words(words: Sequence[str], options: type[T]) -> tuple[str, T]:
    """The run folder, and the options.

    Raises:
        ConfigError: there is not one folder, or an option is unknown or not accepted.
    """
    hints = get_type_hints(options, include_extras=True)
    folders = [word for word in words if "=" not in word]
    if len(folders) != 1:
        raise ConfigError(f"expected one run folder and options such as {next(iter(hints))}=..., got {' '.join(words)}")
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            continue
        if name not in hints:
            raise ConfigError(f"option {name} is unknown{near(name, hints)}")
        values[name] = value_of(name, text, hints[name])
        if reason := problem(name, values[name], hints[name]):
            raise ConfigError(reason)
    return folders[0], options(**values)


def value_of(name: str, text: str, hint: Any) -> Any:
    """The value that a text stands for, by an option's annotation.

    Raises:
        ConfigError: the text is no such value.
    """
    kinds = kinds_of(hint)
    if type(None) in kinds and text == "null":
        return None
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in kinds:
        return text
    raise ConfigError(f"{name} must be a number, got {text}")


def kinds_of(hint: Any) -> set[type]:
    """The plain types of an annotation: of `Annotated[int | None, ...]` int and None."""
    if hasattr(hint, "__metadata__"):
        return kinds_of(get_args(hint)[0])
    if get_origin(hint) in (types.UnionType, Union):
        return set().union(*map(kinds_of, get_args(hint)))
    return {hint}
