"""Separate a run's measurements from its rows about acts of the method.

A run logs a row {"kind": "boundary"} at the step of the row before it, and a row {"kind": "firing"} where a trigger
fired. Tables hold numbers only, so in a table such a row has 1 or 2 in the column `boundary`.
"""

from typing import Any

import pandas as pd

FLAG = "boundary"
FIRING = "firing"  # a column of boundaries: 1 where a trigger fired, 0 at the boundary of a phase
KINDS = {"boundary": 1.0, "firing": 2.0}


def flag(row: dict[str, object]) -> dict[str, object]:
    """Return a row of metrics.jsonl with the number `boundary` (1 or 2) in place of its `kind`."""
    kind = KINDS.get(str(row.get("kind")))
    return row if kind is None else {**{k: v for k, v in row.items() if k != "kind"}, FLAG: kind}


def place(row: dict[str, Any]) -> tuple[float, float]:
    """Return a key that sorts rows by step; at one step, measurements come before the method's act."""
    return row["step"], KINDS.get(str(row.get("kind")), 0.0)


def trigger_of(config: dict[str, Any]) -> str:
    """Return when the method acts: the trigger's name with its options; `boundary` for older runs without a trigger."""
    node = config.get("trigger")
    if not isinstance(node, dict):
        return "boundary"
    options = (f"{key}={value}" for key, value in node.items() if key not in ("_target_", "name") and value is not None)
    return " ".join([str(node.get("name")), *options])


def split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split a run's table into (history, boundaries), each without columns that have no number in it."""
    if FLAG not in table:
        return table, pd.DataFrame()
    is_act = table[FLAG].isin([*KINDS.values()])
    boundaries = table[is_act].drop(columns=FLAG)
    is_firing = table.loc[is_act, FLAG] == KINDS[FIRING]
    if is_firing.any():
        boundaries = boundaries.assign(**{FIRING: is_firing})
    return without_empty_columns(table[~is_act]), without_empty_columns(boundaries)


def without_empty_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without columns that have no number, its rows counted anew."""
    return table.dropna(axis="columns", how="all").reset_index(drop=True)


def join(history: pd.DataFrame, boundaries: pd.DataFrame) -> pd.DataFrame:
    """Undo `split`: return one table, sorted by step, with the column `boundary` if there are boundaries."""
    if not len(boundaries):
        return history
    kinds = 1.0 + (boundaries[FIRING].astype(float) if FIRING in boundaries else 0.0)
    acted = boundaries.drop(columns=FIRING, errors="ignore").assign(**{FLAG: kinds})
    both = pd.concat([history, acted], ignore_index=True)
    return both.sort_values(["step", FLAG], kind="stable", na_position="first", ignore_index=True)
