"""What distinguishes configurations from each other, and their order."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested config as (dotted name, value)."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from flatten(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), config


def differences(configs: Iterable[Any]) -> list[str]:
    """For each config what distinguishes it from the others: `lr=0.1, width=8`; empty where it is the only one.

    Takes as few keys as possible, earlier ones first; a final `...` says that more keys differ.
    """
    flats = [dict(flatten(config)) for config in configs]
    kept, telling = telling_keys(flats)
    named = [[f"{k.split('.')[-1]}={flat[k]}" for k in kept if k in flat] for flat in flats]
    more = ["..."] if len(telling) > len(kept) and kept != ["scale"] else []
    return [", ".join(names + more) for names in named]


def telling_keys(flats: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Of flat configs as few keys as tell them apart, earlier ones first, and all keys that differ."""
    keys = dict.fromkeys(key for flat in flats for key in flat)
    telling = [key for key in keys if len({str(flat.get(key)) for flat in flats}) > 1]
    kept: list[str] = []
    parts = 1
    for key in telling:
        finer = len({tuple(str(flat.get(k)) for k in [*kept, key]) for flat in flats})
        if finer > parts:
            kept, parts = [*kept, key], finer
    return kept, telling


def places(configs: Iterable[Any]) -> list[tuple[int, int]]:
    """For each config the number of its value of the option with most values, and of its values of the other options.

    Numbers count from 0 in the order of the configs. A figure takes the first for the colour, the second for the dash.
    """
    flats = [dict(flatten(config)) for config in configs]
    kept, _ = telling_keys(flats)
    most = max(kept, key=lambda key: len({str(flat.get(key)) for flat in flats}), default=None)

    def numbers(keys: Sequence[str]) -> list[int]:
        values = [tuple(str(flat.get(key)) for key in keys) for flat in flats]
        order = [*dict.fromkeys(values)]
        return [order.index(value) for value in values]

    first = [most] if most else []
    return [*zip(numbers(first), numbers([key for key in kept if key != most]), strict=True)]


def by_number(text: str) -> list[str | float]:
    """A key that sorts texts alike up to their numbers by these: 5 before 10, 1e-4 before 0.01."""
    parts: list[str | float] = list(re.split(r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text))
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]
