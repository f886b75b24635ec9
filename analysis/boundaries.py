"""Rows of a run's log apart from rows about where a method acted.

Runs log a row {"kind": "boundary"} at the step of the row before it, and {"kind": "firing"} where a trigger fired. In a
table such a row has 1 or 2 in the column `boundary`, as tables hold numbers alone.
"""

from typing import Any

import pandas as pd

FLAG = "boundary"
FIRING = "firing"  # a column of boundaries: 1 where a trigger fired, 0 at the boundary of a phase
KINDS = {"boundary": 1.0, "firing": 2.0}


def flag(row: dict[str, object]) -> dict[str, object]:
    """A row of metrics.jsonl with the column `boundary` instead of its kind."""
    kind = KINDS.get(str(row.get("kind")))
    return row if kind is None else {**{k: v for k, v in row.items() if k != "kind"}, FLAG: kind}


def place(row: dict[str, Any]) -> tuple[float, float]:
    """Where a row stands among others: by step, and at one step what was measured before what a method did then."""
    return row["step"], KINDS.get(str(row.get("kind")), 0.0)


def trigger_of(config: dict[str, Any]) -> str:
    """When the method acts: the trigger's name with its options; earlier runs have none, and act at boundaries."""
    node = config.get("trigger")
    if not isinstance(node, dict):
        return "boundary"
    options = (f"{key}={value}" for key, value in node.items() if key not in ("_target_", "name") and value is not None)
    return " ".join([str(node.get("name")), *options])


def split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A run's table as (history, boundaries), each with the columns that it has numbers in."""
    if FLAG not in table:
        return table, pd.DataFrame()
    acted, fired = table[FLAG].isin([*KINDS.values()]), table[FLAG] == KINDS[FIRING]
    of_firings = {FIRING: fired} if fired.any() else {}
    parts = table[~acted], table[acted].drop(columns=FLAG).assign(**of_firings)
    history, boundaries = (part.dropna(axis="columns", how="all").reset_index(drop=True) for part in parts)
    return history, boundaries


def join(history: pd.DataFrame, boundaries: pd.DataFrame) -> pd.DataFrame:
    """The table that `split` takes apart, with the column `boundary` if there is any."""
    if not len(boundaries):
        return history
    kinds = 1.0 + (boundaries[FIRING].astype(float) if FIRING in boundaries else 0.0)
    acted = boundaries.drop(columns=FIRING, errors="ignore").assign(**{FLAG: kinds})
    both = pd.concat([history, acted], ignore_index=True)
    return both.sort_values(["step", FLAG], kind="stable", na_position="first", ignore_index=True)
