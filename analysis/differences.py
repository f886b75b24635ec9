"""Find the options by which configurations differ, for labels, colours and order."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested config as (dotted name, value)."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from flatten(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), config


def text_of(flat: dict[str, Any], key: str) -> str:
    """Return the value of an option of a flat config as text; an option that it lacks is no option that is null."""
    return str(flat[key]) if key in flat else "(absent)"


def differences(configs: Iterable[Any]) -> list[str]:
    """Return for each config the options that distinguish it, such as `lr=0.1, width=8`; empty if there is only one.

    As few options as possible are named, earlier ones first. A final `...` says that the configs differ in more.
    """
    flats = [dict(flatten(config)) for config in configs]
    sufficient, differing = distinguishing_keys(flats)
    more = ["..."] if len(differing) > len(sufficient) and sufficient != ["scale"] else []
    texts = []
    for flat in flats:
        options = [f"{key.split('.')[-1]}={flat[key]}" for key in sufficient if key in flat]
        texts.append(", ".join(options + more))
    return texts


def deviations(configs: Sequence[dict[str, Any]], usual: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return for each flat config the options in which it is not as the others, with its values; mostly none.

    The others have the usual value if any config has it, else the one that most configs have. An option that a config
    lacks is not compared.

    Args:
        configs: the configs, without nested ones.
        usual: values that options have where nobody has set them.
    """
    expected = {}
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [str(config[key]) for config in configs if key in config]
        most_common, _ = Counter(values).most_common(1)[0]
        expected[key] = next((value for value in usual if value in values), most_common)
    return [{key: str(value) for key, value in config.items() if str(value) != expected[key]} for config in configs]


def distinguishing_keys(flats: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return (sufficient, differing) keys of flat configs.

    `differing` are all keys whose values differ. `sufficient` are as few of them as distinguish the configs as well as
    all do: a key is taken, in the configs' order, if it distinguishes more configs than those before it.
    """
    keys = dict.fromkeys(key for flat in flats for key in flat)
    differing = [key for key in keys if len({text_of(flat, key) for flat in flats}) > 1]
    sufficient: list[str] = []
    number_distinguished = 1
    for key in differing:
        with_key = [*sufficient, key]
        number = len({tuple(text_of(flat, k) for k in with_key) for flat in flats})
        if number > number_distinguished:
            sufficient, number_distinguished = with_key, number
    return sufficient, differing


def looks(configs: Iterable[Any]) -> list[tuple[int, int]]:
    """Return for each config the numbers of its line's colour and dash in a figure.

    Both come from the fewest options that tell the configs apart (`distinguishing_keys`). The colour is the index of
    the value of the option with most values, the first such option where several have as many; the dash that of the
    combination of the other options' values. Indices count from 0, in the order of first appearance.
    """
    flats = [dict(flatten(config)) for config in configs]
    keys, _ = distinguishing_keys(flats)
    colour_key = max(keys, key=lambda key: len({text_of(flat, key) for flat in flats}), default=None)
    dash_keys = [key for key in keys if key != colour_key]

    def indices(keys: Sequence[str]) -> list[int]:
        values = [tuple(text_of(flat, key) for key in keys) for flat in flats]
        distinct = [*dict.fromkeys(values)]
        return [distinct.index(value) for value in values]

    return [*zip(indices([colour_key] if colour_key else []), indices(dash_keys), strict=True)]


def by_number(text: str) -> list[str | float]:
    """Return a key that sorts the numbers in texts by value: `k=5` before `k=10`, `lr=1e-4` before `lr=0.01`."""
    parts: list[str | float] = list(re.split(r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text))
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]
