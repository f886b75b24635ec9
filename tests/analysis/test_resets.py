"""Resets x optimizers: what its tables take of each run."""

import itertools

import pandas as pd
import pytest

from analysis import resets
from analysis.summary import grid


def test_methods_are_compared_within_an_optimizer_and_optimizers_within_a_method() -> None:
    runs = pd.DataFrame(
        {"row": f"{method}_{optimizer}", "seed": seed}
        | {resets.SCORE: 0.1 * place + 0.01 * number + 0.001 * seed * place, resets.LATE: 0.5}
        for (place, method), (number, optimizer), seed in itertools.product(
            enumerate(resets.RESETS), enumerate([*resets.OPTIMIZERS][:4]), (1, 2, 4)
        )
    )
    two = runs[runs["row"].str.endswith("muon")].assign(seed=lambda rows: rows["seed"] + 10)
    found = resets.numbers(runs, two)
    of_fire, of_adam = resets.differences(found)
    last = of_fire[of_fire["FIRE minus"] == "Base"]
    assert last["Muon, one rate"].item().difference.mean == pytest.approx(-0.4 - 0.001 * 4 * 7 / 3)
    assert last["Muon, two rates"].item().difference == last["Muon, one rate"].item().difference
    assert last["Adam"].item().p_holm > last["Adam"].item().p
    assert [one.difference.mean for one in of_adam["Muon, one rate"]] == pytest.approx([0.03] * 5)
    table = grid(found, "optimizer", {"adam": "Adam"}, {resets.SCORE: 2, resets.LATE: 1})
    assert table.iloc[[0, -1]].to_numpy().tolist() == [["base", "0.41 (0.5)"], ["fire", "0.00 (0.5)"]]
