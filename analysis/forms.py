"""What a method's row is called, by the options that its runs had.

"FIRE" is the paper's form alone: cubic steps from W / ||W||_F, its scale, all of the way. A row whose runs had another
scale, start or share of the way is "FIRE searched", and one with another number of steps says how many.
"""

from collections.abc import Iterable, Mapping

import pandas as pd

from analysis import style

PAPER = {"solver": "newton_schulz", "norm_init": "frobenius", "scale": "modular", "blend": "1", "variance_factor": "1"}
SEARCHED = {"fire": "FIRE searched", "fire_exact": "FIRE exact, searched"}


def label(method: str, options: str = "") -> str:
    """The name of a method, of a chain or of a variant such as `fire (blend=0.5)`.

    Args:
        method: as in tables of results.
        options: of its runs, as on the command line.
    """
    name, _, detail = method.partition(" (")
    parts = name.split("+")
    given = dict(option.split("=", 1) for option in options.split())
    text = " + ".join(part_label(part, options_of(part, given, len(parts) > 1)) for part in parts)
    return f"{text} ({detail}" if detail else text


def options_of(part: str, given: Mapping[str, str], is_chain: bool) -> dict[str, str]:
    """The options of a method, or of one part of a chain, by their short names."""
    prefix = f"method.parts.{part}." if is_chain else "method."
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}


def part_label(method: str, options: Mapping[str, str]) -> str:
    """The name of a single method with some options."""
    if method not in SEARCHED:
        return style.name(method)
    changed = {name for name, value in PAPER.items() if name in options and options[name].removesuffix(".0") != value}
    if changed - ({"solver"} if method == "fire_exact" else set()):
        return SEARCHED[method]
    return f"FIRE, {options['iterations']} steps" if "iterations" in options else style.name(method)


def winners(trials: pd.DataFrame, more: bool) -> dict[str, str]:
    """The options that a search chose for each method, as the tuner does: the first of the best scores."""
    ordered = trials.sort_values("trial", kind="stable").dropna(subset="score")
    ordered = ordered.sort_values("score", ascending=not more, kind="stable").fillna({"options": ""})
    return {str(method): str(rows["options"].iloc[0]) for method, rows in ordered.groupby("method", sort=False)}


def names(methods: Iterable[str], *searches: Mapping[str, str]) -> dict[str, str]:
    """What the methods of a table are called.

    Args:
        methods: as in tables of results.
        searches: of each stream in the table, what its search chose. A method that was searched on one of them is named
            so in a table of several.
    """
    found = {method: label(method) for method in methods}
    for chosen in searches:
        for method in found:
            named = label(method, chosen.get(method, ""))
            if named != label(method):
                found[method] = named
    return found
