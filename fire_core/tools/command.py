"""What the command line tools share: options refused on one line, and how far a command is."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

from fire_core.weights.entry import Declared

PROGRESS_INTERVAL = 5.0  # seconds between two lines
MOST_ITERATIONS = 1000  # of a solver, as in the programs

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an option on one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with an option, and end the command with exit code 2."""
        print(message.removeprefix("argument "), file=sys.stderr)
        raise SystemExit(2)


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the type of a command line option that is a whole number from `least` up, or from `least` to `most`."""
    bounds = f"from {least} up" if most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        is_number = text.removeprefix("-").isdecimal()
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text} is no whole number {bounds}")
        return int(text)

    return number


def blocks_of(text: str) -> tuple[str, Declared]:
    """Read the text of `--blocks`: a pattern, and the heights of the blocks, with or without names.

    `*.qkv.weight=64,16,16` or `*.qkv.weight=q:64,k:16,v:16`.

    Raises:
        ArgumentTypeError: the text is not of this form.
    """
    pattern, _, heights = text.rpartition("=")
    words = [word.rpartition(":") for word in heights.split(",")]
    if not pattern or any(not height.isdecimal() for _, _, height in words):
        raise argparse.ArgumentTypeError(f"{text} is not of the form *.qkv.weight=64,16,16 or *.qkv.weight=q:64,k:16")
    if any(name for name, _, _ in words):
        return pattern, {name: int(height) for name, _, height in words}
    return pattern, tuple(int(height) for _, _, height in words)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how weights are cut: `--model`, and `--blocks` and `--transposed` of `fire_`."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="timm:<name>, torchvision:<name> or a folder with a config.json: how weights are cut",
    )
    parser.add_argument(
        "--blocks",
        type=blocks_of,
        action="append",
        default=[],
        metavar="PATTERN=HEIGHTS",
        help="rows of a fused weight, '*.qkv.weight=64,16,16', or by name, '*.qkv.weight=q:16,k:16,v:16,repeats:4' "
        "where four heads have their own q, k, v",
    )
    parser.add_argument(
        "--transposed", action="append", default=[], metavar="PATTERN", help="weights that are stored (d_in, d_out)"
    )


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items; every few seconds write to stderr how many of them are done."""
    begin = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - last > PROGRESS_INTERVAL:
            print(f"{what}: {done} of {len(items)}, {now - begin:.0f} s", file=sys.stderr, flush=True)
            last = now
        yield item
