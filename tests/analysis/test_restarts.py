"""What SAC loses at a boundary: which tasks its table takes, and that boundaries have no part in it."""

import pandas as pd
import pytest

from analysis import restarts
from analysis.summary import summarise


def test_the_last_three_tasks_are_compared_without_boundaries() -> None:
    ends = [("fire", 1, (9, 9, 5, 6, 7)), ("base", 1, (9, 9, 1, 2, 3)), ("base", 2, (9, 9, 3, 4, 5))]
    rows = [(row, seed, task, value) for row, seed, values in ends for task, value in enumerate((*values, None))]
    curves = pd.DataFrame(rows, columns=["row", "seed", "phase", restarts.RETURN]).assign(**{"eval/return": 0.0})
    table = summarise(restarts.numbers(curves), restarts.TABLE).set_index("method")
    assert table.loc[["fire", "base"], "last 3"].map(lambda one: one.mean).tolist() == [6, 3]
    assert table["vs base"]["fire"].difference.mean == pytest.approx(4)
