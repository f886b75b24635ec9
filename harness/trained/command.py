"""The command line of a program that uses a trained run: `python -m <module> RUN option=value ...`."""

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fire_core.ranges import problem, shown
from fire_core.tools.output import keep_output, system_errors_explained
from harness.config.errors import EXIT_CONFIG, EXIT_TRAINING, ConfigError, TrainingError, near
from harness.config.paths import place

T = TypeVar("T")
EXIT_INTERRUPTED = 130


def run_command(main: Callable[[str, T], None], options: type[T], usage: str) -> None:
    """Call `main` with the run folder and the options of the command line; an error is printed as one line.

    Args:
        main: `main(folder, options)`.
        options: a dataclass; each field has a default, and its annotation the accepted values (`fire_core.ranges`).
        usage: the text that `--help` prints.

    Raises:
        SystemExit: 2 for an option, 3 if a file of the run cannot be read or the run not be played, 1 if any other file
            cannot be read or written, 130 after Ctrl-C.
    """
    keep_output()
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & {*words}:
        print(usage.strip())
        return
    try:
        with system_errors_explained():
            main(*read_words(words, options))
            sys.stdout.flush()
    except (ConfigError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_TRAINING if isinstance(error, TrainingError) else EXIT_CONFIG) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def read_words(words: Sequence[str], options: type[T]) -> tuple[str, T]:
    """Parse the words of the command line into the run folder and the options.

    Raises:
        ConfigError: there is no folder or more than one, or an option is unknown, or its value is not accepted.
    """
    hints = get_type_hints(options, include_extras=True)
    if flags := [word for word in words if word.startswith("-")]:
        raise ConfigError(f"{flags[0]}: options are written option=value; accepted: {', '.join(hints)}")
    # A folder's name may have a =: ./runs/lr=0.1
    folders = [word for word in words if "=" not in word or "/" in word.partition("=")[0]]
    if len(folders) != 1:
        raise ConfigError(f"expected one run folder and options such as {next(iter(hints))}=..., got {' '.join(words)}")
    if wrong_path := place("the run folder", folders[0]):
        raise ConfigError(wrong_path)
    values: dict[str, Any] = {}
    for word in words:
        if word in folders:
            continue
        name, _, text = word.partition("=")
        if name not in hints:
            raise ConfigError(f"option {name} is unknown{near(name, hints)}")
        values[name] = value_of(name, text, hints[name])
        if reason := problem(name, values[name], hints[name]):
            raise ConfigError(reason)
    return folders[0], options(**values)


def value_of(name: str, text: str, hint: Any) -> Any:
    """Convert an option's text to the type of its annotation: None, int, float or str, the first that fits.

    Raises:
        ConfigError: the text fits none of the annotation's types.
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
    raise ConfigError(f"{name} must be a number, got {shown(text)}")


def kinds_of(hint: Any) -> set[type]:
    """Return the plain types in an annotation: `Annotated[int | None, ...]` has int and NoneType."""
    if hasattr(hint, "__metadata__"):
        return kinds_of(get_args(hint)[0])
    if get_origin(hint) in (types.UnionType, Union):
        return set().union(*map(kinds_of, get_args(hint)))
    return {hint}
