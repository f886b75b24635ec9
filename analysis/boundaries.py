"""Rows of a run's log apart from rows about its boundaries, however the run wrote them.

Runs log a row {"kind": "boundary"} at the step of the row before it. In a table such a row has 1 in the column
`boundary`, as tables hold numbers alone. Earlier runs put the boundary's numbers into the first row of the phase that
begins there; `split` takes them out.
"""

import numpy as np
import pandas as pd

from analysis.arrays import Bools

FLAG = "boundary"
PREFIX = "boundary/"


def flag(row: dict[str, object]) -> dict[str, object]:
    """A row of metrics.jsonl with the column `boundary` instead of its kind."""
    return {**{k: v for k, v in row.items() if k != "kind"}, FLAG: 1.0} if row.get("kind") == "boundary" else row


def split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A run's table as (history, boundaries), each with the columns that it has numbers in."""
    if FLAG in table:
        here = table[FLAG].to_numpy() == 1
        return _part(table, ~here), _part(table.drop(columns=FLAG), here)
    columns = [name for name in table if str(name).startswith(PREFIX)]
    if not columns:
        return table, pd.DataFrame()
    here = table[columns].notna().any(axis=1).to_numpy()
    if not here.any():
        return table, _part(table, here)
    boundaries = table.loc[here, [name for name in ("step", "phase") if name in table] + columns]
    before = np.flatnonzero(here) - 1
    steps = table["step"].to_numpy()
    boundaries = boundaries.assign(step=np.where(before < 0, 0, steps[before]))
    return table.drop(columns=columns), boundaries.reset_index(drop=True)


def join(history: pd.DataFrame, boundaries: pd.DataFrame) -> pd.DataFrame:
    """The table that `split` takes apart, with the column `boundary` if there is any."""
    if not len(boundaries):
        return history
    both = pd.concat([history, boundaries.assign(**{FLAG: 1.0})], ignore_index=True)
    return both.sort_values(["step", FLAG], kind="stable", na_position="first", ignore_index=True)


def _part(table: pd.DataFrame, rows: Bools) -> pd.DataFrame:
    return table[rows].dropna(axis="columns", how="all").reset_index(drop=True)
