"""Command-line options that make_figures.py and make_report.py share."""

import argparse
import os
import re
import sys
from pathlib import Path

from analysis.formats import printable
from analysis.runs import LeftOut, Run, SourceError
from analysis.sources import load


def a_path(text: str) -> Path:
    """Return a path of the command line, with `~` as the home folder.

    Raises:
        argparse.ArgumentTypeError: the path is empty, as from an unset shell variable, or has a variable that the shell
            has not replaced, as in '$HOME/figures' within single quotes.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: is a shell variable not set?")
    path = Path(text).expanduser()
    variables = [part for part in path.parts if re.fullmatch(r"\$[A-Za-z_]\w*", part)]
    if variables and not path.exists():
        raise argparse.ArgumentTypeError(f"{text}: the shell has not replaced {variables[0]}, as within single quotes")
    return path


def a_table(text: str) -> Path:
    """Return the path of a table of small results, as which `--runs` recognises it by its ending.

    Raises:
        argparse.ArgumentTypeError: see `a_path`; or the name has another ending.
    """
    path = a_path(text)
    if path.suffix != ".csv":
        raise argparse.ArgumentTypeError(f"{text} must end in .csv, by which --runs knows it again")
    return path


def a_source(text: str) -> str:
    """Return the text of a source: a path with `~` as the home folder, or a name on the wandb service.

    Raises:
        argparse.ArgumentTypeError: the text is empty.
    """
    a_path(text)
    return os.path.expanduser(text)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that say from where runs are read, and whether unfinished ones count."""
    add = parser.add_argument
    sources = "folders of runs, small results (.csv), wandb-local:FOLDER or wandb:ENTITY/PROJECT (runs)"
    add("--runs", nargs="+", type=a_source, default=["runs"], metavar="SOURCE", help=sources)
    add("--include-unfinished", action="store_true", help="include runs that did not finish")


def load_or_explain(
    program: str, sources: list[str], include_unfinished: bool = False
) -> tuple[list[Run], list[LeftOut]] | None:
    """Return the usable runs and those that were left out, and print the latter.

    Returns:
        None, after one printed line with the reason, if there are no runs.
    """
    try:
        runs, left_out = load(sources, include_unfinished)
    except SourceError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return None
    for item in left_out:
        print(printable(str(item)))
    if not runs:
        print(f"{program}: no usable runs in {', '.join(sources)}", file=sys.stderr)
        return None
    return runs, left_out
