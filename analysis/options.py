"""Options that both programs share."""

import argparse
import os
import sys
from pathlib import Path

from analysis.runs import LeftOut, Run, SourceError
from analysis.sources import load


def a_path(text: str) -> Path:
    """A path of the command line; `~` is the home folder.

    Raises:
        argparse.ArgumentTypeError: it is empty, as that of a shell variable that is not set.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: is a shell variable not set?")
    return Path(text).expanduser()


def a_source(text: str) -> str:
    """A path, or a source on the wandb service, as it was written; errors as of `a_path`."""
    a_path(text)
    return os.path.expanduser(text)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Where runs come from, and which."""
    add = parser.add_argument
    sources = "folders of runs, small results (.csv), wandb-local:FOLDER or wandb:ENTITY/PROJECT (runs)"
    add("--runs", nargs="+", type=a_source, default=["runs"], metavar="SOURCE", help=sources)
    add("--include-unfinished", action="store_true", help="include runs that did not finish")


def load_or_explain(
    program: str, sources: list[str], include_unfinished: bool = False
) -> tuple[list[Run], list[LeftOut]] | None:
    """The runs, and what was left out, which is printed; None, after one line with the reason, if there are no runs."""
    try:
        runs, left_out = load(sources, include_unfinished)
    except SourceError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return None
    for item in left_out:
        print(item)
    if not runs:
        print(f"{program}: no usable runs in {', '.join(sources)}", file=sys.stderr)
        return None
    return runs, left_out
