"""What distinguishes configurations from each other, and their order."""

import re
from collections.abc import Iterable, Iterator
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
    keys = dict.fromkeys(key for flat in flats for key in flat)
    telling = [key for key in keys if len({str(flat.get(key)) for flat in flats}) > 1]
    kept: list[str] = []
    parts = 1
    for key in telling:
        finer = len({tuple(str(flat.get(k)) for k in [*kept, key]) for flat in flats})
        if finer > parts:
            kept, parts = [*kept, key], finer
    named = [[f"{k.split('.')[-1]}={flat[k]}" for k in kept if k in flat] for flat in flats]
    more = ["..."] if len(telling) > len(kept) and kept != ["scale"] else []
    return [", ".join(names + more) for names in named]


def by_number(text: str) -> list[str | float]:
    """A key that sorts texts alike up to their numbers by these: 5 before 10, 1e-4 before 0.01."""
    parts: list[str | float] = list(re.split(r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text))
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]
