"""Options that both programs share."""

import argparse
import re
import sys
from collections.abc import Iterator

from analysis.runs import LeftOut, Run, SourceError
from analysis.sources import load


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Where runs come from, and which."""
    add = parser.add_argument
    sources = "folders of runs, small results (.csv), wandb-local:FOLDER or wandb:ENTITY/PROJECT (runs)"
    add("--runs", "--source", nargs="+", default=["runs"], metavar="SOURCE", help=sources)
    add("--include-unfinished", action="store_true", help="include runs that did not finish")


def split(argv: list[str]) -> list[str]:
    """`name=value` as `--name value`, as the other programs of the project write options."""
    return [part for arg in argv for part in option(arg)]


def option(arg: str) -> Iterator[str]:
    if found := re.fullmatch(r"([a-z_]+)=(.*)", arg):
        yield "--" + found[1].replace("_", "-")
        if found[2] != "true":  # of a flag its name is enough
            yield from found[2].split(",") if found[1] in ("runs", "source") else [found[2]]
    else:
        yield arg


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
