"""Name a method's line or row by the options of its runs. All figures and tables take their labels from here.

"FIRE" is the paper's form alone: k cubic steps from W / ||W||_F, its scale, all of the way. Runs of what a search chose
are "FIRE searched" where that has another scale, start or share of the way; other runs say what differs, as in
"FIRE (norm_init=spectral)".
"""

from collections.abc import Mapping
from typing import Any

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


def label_of_config(config: Mapping[str, Any], detail: str = "") -> str:
    """Return the label of a run's method, from the run's configuration.

    Args:
        config: the run's configuration.
        detail: the options that distinguish it from variants of the same method, such as `iterations=5`.
    """
    method = config["method"]
    options = method if isinstance(method, dict) else {"name": method}
    steps, searched = STEPS_OF.get(str(config.get("program")), STEPS), config.get("tuned") == "searched"
    name = str(options["name"])
    if isinstance(parts := options.get("parts"), dict):  # a chain; `parts` may hold other methods too
        text = " + ".join(part_label(part, parts[part], steps, searched) for part in name.split("+"))
        return f"{text} ({detail})" if detail else text
    return part_label(name, options, steps, searched, detail)


def part_label(method: str, options: Mapping[str, Any], steps: str, searched: bool, detail: str = "") -> str:
    """Return the label of a single method.

    Args:
        method: name of the method.
        options: its options.
        steps: the paper's number of Newton-Schulz steps for the run's program.
        searched: whether a search chose the options.
        detail: see `label_of_config`.
    """
    changed = changes(method, options, steps)
    name, notes = style.name(method), [detail] if detail else []
    if searched and [*changed] == ["iterations"]:
        name = f"{name}, {changed['iterations']} steps"
    elif searched and changed:
        name = SEARCHED[method]
    else:
        notes = [f"{key}={value}" for key, value in changed.items() if f"{key}=" not in detail] + notes
    return f"{name} ({', '.join(notes)})" if notes else name


def changes(method: str, options: Mapping[str, Any], steps: str) -> dict[str, str]:
    """Return the options of FIRE that differ from the paper's; empty for methods that are not FIRE."""
    if method not in SEARCHED:
        return {}
    form = {"iterations": steps} | PAPER if method == "fire" else {k: v for k, v in PAPER.items() if k != "solver"}
    if method == "fire_half":
        form["blend"] = "0.5"
    given = {key: str(options[key]).removesuffix(".0") for key in form if key in options}
    return {key: value for key, value in given.items() if value != form[key]}
