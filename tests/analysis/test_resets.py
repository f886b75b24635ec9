"""Resets x optimizers: what its tables take of each run."""

import itertools

import pandas as pd
import pytest

from analysis import resets
from analysis.summary import grid


def test_methods_are_compared_within_an_optimizer_and_optimizers_within_a_method() -> None:
    runs = resets.numbers(
        pd.DataFrame(
            {"row": f"{method}_{optimizer}", "seed": seed}
            | {resets.SCORE: 0.1 * place + 0.01 * number + 0.001 * seed * place, resets.LATE: 0.5}
            for (place, method), (number, optimizer), seed in itertools.product(
                enumerate(resets.RESETS), enumerate(resets.OPTIMIZERS), (1, 2, 4)
            )
        )
    )
    of_fire, of_muon = resets.differences(runs)
    last = of_fire[of_fire["FIRE minus"] == "Base"]["Muon"].item()
    assert last.difference.mean == pytest.approx(-0.4 - 0.001 * 4 * 7 / 3)
    assert last.p_holm > last.p
    assert [one.difference.mean for one in of_muon["Muon minus Adam"]] == pytest.approx([0.03] * 5)
    table = grid(runs, "optimizer", {"adam": "Adam"}, {resets.SCORE: 2, resets.LATE: 1})
    assert table.iloc[[0, -1]].to_numpy().tolist() == [["base", "0.41 (0.5)"], ["fire", "0.00 (0.5)"]]
