"""The tables of docs/results/triggers.md."""

import math

import pandas as pd
import pytest

from scripts.triggers_tables import correlation, tables
from tests.zygote import ROOT


def test_rank_correlation() -> None:
    assert correlation(pd.Series([1.0, 5.0, 9.0]), pd.Series([0.1, 0.2, 7.0])) == pytest.approx(1)
    assert correlation(pd.Series([1.0, 2.0, 3.0, 4.0]), pd.Series([4.0, 3.0, 1.0, 2.0])) == pytest.approx(-0.8)
    assert math.isnan(correlation(pd.Series([1.0, 1.0]), pd.Series([1.0, 2.0])))


def test_the_page_has_the_tables_of_the_committed_numbers() -> None:
    assert tables(ROOT / "docs/results/triggers") in (ROOT / "docs/results/triggers.md").read_text()
