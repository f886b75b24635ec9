"""What a method's line or row is called, by the options that its runs had: the one place where names are made.

"FIRE" is the paper's form alone: k cubic steps from W / ||W||_F, its scale, all of the way. Runs of what a search chose
are "FIRE searched" where that has another scale, start or share of the way; other runs say what differs, as in
"FIRE (norm_init=spectral)".
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis import style

PAPER = {
    "solver": "newton_schulz", "norm_init": "frobenius", "scale": "modular", "blend": "1", "variance_factor": "1",
    "tol": "None",
}  # fmt: skip
STEPS, STEPS_OF = "10", {"language": "5"}  # the paper's k, by program
SEARCHED = {
    "fire": "FIRE searched",
    "fire_exact": "FIRE exact, searched",
    "fire_half": "FIRE, half of the way, searched",
}


def label(method: str, options: str = "") -> str:
    """The name of a method, of a chain or of a variant such as `fire (blend=0.5)` in a table of a search.

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


def label_of_config(config: Mapping[str, Any], detail: str = "") -> str:
    """The name of a run's method, from the run's configuration.

    Args:
        config: of the run.
        detail: what distinguishes it from variants of the same method, such as `iterations=5`.
    """
    method = config["method"]
    options = method if isinstance(method, dict) else {"name": method}
    steps, searched = STEPS_OF.get(str(config.get("program")), STEPS), config.get("tuned") == "searched"
    name = str(options["name"])
    if isinstance(parts := options.get("parts"), dict):  # of a chain: the options of every method, named or not
        text = " + ".join(part_label(part, parts[part], steps, searched) for part in name.split("+"))
        return f"{text} ({detail})" if detail else text
    return part_label(name, options, steps, searched, detail)


def part_label(
    method: str, options: Mapping[str, Any], steps: str = STEPS, searched: bool = True, detail: str = ""
) -> str:
    """The name of a single method with some options."""
    changed = changes(method, options, steps)
    name, notes = style.name(method), [detail] * bool(detail)
    if searched and [*changed] == ["iterations"]:
        name = f"{name}, {changed['iterations']} steps"
    elif searched and changed:
        name = SEARCHED[method]
    else:
        notes = [f"{key}={value}" for key, value in changed.items() if f"{key}=" not in detail] + notes
    return f"{name} ({', '.join(notes)})" if notes else name


def changes(method: str, options: Mapping[str, Any], steps: str = STEPS) -> dict[str, str]:
    """Those of FIRE's options that are not the paper's; of another method none."""
    if method not in SEARCHED:
        return {}
    form = {"iterations": steps} | PAPER if method == "fire" else {k: v for k, v in PAPER.items() if k != "solver"}
    if method == "fire_half":
        form["blend"] = "0.5"
    given = {key: str(options[key]).removesuffix(".0") for key in form if key in options}
    return {key: value for key, value in given.items() if value != form[key]}


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
