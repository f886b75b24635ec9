"""What a method's line or row is called, by the options that its runs had: the one place where names are made.

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


def part_label(method: str, options: Mapping[str, Any], steps: str, searched: bool, detail: str = "") -> str:
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


def changes(method: str, options: Mapping[str, Any], steps: str) -> dict[str, str]:
    """Those of FIRE's options that are not the paper's; of another method none."""
    if method not in SEARCHED:
        return {}
    form = {"iterations": steps} | PAPER if method == "fire" else {k: v for k, v in PAPER.items() if k != "solver"}
    if method == "fire_half":
        form["blend"] = "0.5"
    given = {key: str(options[key]).removesuffix(".0") for key in form if key in options}
    return {key: value for key, value in given.items() if value != form[key]}
