"""What SAC loses at a boundary (docs/protocol.md, study 2): what its table and its figure show."""

import pandas as pd

from analysis import style
from analysis.summary import Column, Table, differences

NAMES = style.NAMES | {
    "base": "Base: both new",
    "untouched": "Neither new",
    "new_optimizer": "New optimizer alone",
    "new_temperature": "New temperature alone",
}
SHOWN = ("base", "untouched", "new_optimizer", "new_temperature", "full_reset", "snp", "fire")  # in the figure
RETURN = "task/return"  # of training, in the last quarter of a task
STATE = {
    "evaluation": "Greedy evaluation",
    "train/temperature": "Temperature",
    "gradient_norm": "Gradient norm",
    "td_fresh": "TD error, fresh",
    "effective_rank": "Effective rank",
}
TABLE = Table(
    (
        Column("last 3", "return", "last 3"),
        *differences("return", "base", "fire", tasks="last 3"),
        Column("evaluation, last 3", "evaluation", "last 3"),
    ),
    order="last 3",
)


def numbers(curves: pd.DataFrame) -> pd.DataFrame:
    """A row for each task's end; boundaries, which have no return, are left out."""
    told = {"row": "method", "phase": "task", RETURN: "return", "eval/return": "evaluation"}
    return curves.dropna(subset=RETURN).rename(columns=told | {f"plasticity/{name}": name for name in STATE})
