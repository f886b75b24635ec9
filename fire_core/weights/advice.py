"""What a user must know of a model's layout: one line for what is kept and might have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from fire_core.weights.entry import Entry
from fire_core.weights.topology import RAW

HEADS = "its number of heads is not known"
RAW_SHARE = 0.1  # of a model's numbers: unknown raw parameters that hold more than this are warned about


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    every = list(dict.fromkeys(names))
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def fused(entries: list[Entry]) -> list[str]:
    """One line for each fused weight that nobody knows, layers that differ by their number together."""
    alike: dict[tuple[str, int, str], list[Entry]] = {}
    for entry in entries:
        if entry.role == "fused":
            alike.setdefault((re.sub(r"\b\d+\b", "*", entry.name), entry.d_out, entry.reason), []).append(entry)
    lines = []
    for (pattern, rows, reason), found in alike.items():
        name = pattern if len(found) > 1 else found[0].name
        parts = 3 if rows % 3 == 0 and re.search("q|attn", name) else 2
        many = f" ({len(found)} weights)" if len(found) > 1 else ""
        lines.append(
            f"{name}{many} is kept; it {reason}, and how its {rows} rows divide is not known. Declare it, "
            f"blocks={{{name!r}: {(rows // parts,) * parts}}} or as they lie; or have it read off a forward pass, "
            f"example=a batch; or take it as one matrix, include={name!r}"
        )
    return lines


def undecided(entries: list[Entry], total: int) -> list[str]:
    """Lines on kept weights of a model of `total` numbers: fused ones, heads and raw parameters that nobody knows."""
    return [*heads(entries), *fused(entries), *raw_parameters(entries, total)]


def heads(entries: list[Entry]) -> list[str]:
    """A line for the weights that are kept because nobody knows their heads."""
    reasons = {entry.label: entry.reason for entry in entries if entry.reason.startswith(HEADS)}
    why = next(iter(reasons.values()), "")
    return [f'layout="heads" keeps {listed(reasons)}: {why}; layout="attention" takes them uncut'] if why else []


def raw_parameters(entries: list[Entry], total: int) -> list[str]:
    """A line if parameters that no rule knows hold much of the model's `total` numbers."""
    found = [e for e in entries if e.reason == RAW and e.kind == "matrix" and min(e.parameter.shape[-2:]) > 1]
    held = sum(e.size for e in found)
    if held <= RAW_SHARE * total:
        return []
    names = listed(re.sub(r"(?<=\.)\d+(?=\.)", "*", e.name) for e in found)
    return [
        f"{100 * held / total:.0f} % of the model's numbers are raw parameters that no rule knows, and are kept: "
        f"{names}. include= projects them, transposed= says that they are stored (d_in, d_out)"
    ]


def quantised(model: nn.Module) -> list[str]:
    """A line on quantised layers, whose weights are no parameters."""
    names = [name for name, module in model.named_modules() if ".quantized" in type(module).__module__]
    names = [name for name in names if not any(name.startswith(f"{outer}.") for outer in names)]
    return [f"{len(names)} quantised layers hold no parameters and are kept: {listed(names)}"] if names else []
