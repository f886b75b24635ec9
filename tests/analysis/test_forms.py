"""A row is called FIRE if its runs had the paper's form, by what its search chose."""

import pandas as pd
import pytest
import yaml

from analysis.forms import PAPER, label, names, winners
from tests.zygote import ROOT

OTHER_FORMS = [
    ("norm_init", "spectral"),
    ("blend", "0."),
    ("scale", "orthogonal"),
    ("scale", "keep_norm"),
    ("scale", "match_init"),
]


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("fire", "", "FIRE"),
        ("fire", "lr=0.1", "FIRE"),
        ("fire", "lr=0.1 method.scale=modular method.blend=1 method.norm_init=frobenius", "FIRE"),
        ("fire", "method.iterations=9 method.blend=1.0", "FIRE, 9 steps"),
        ("fire", "method.blend=0.75", "FIRE searched"),
        ("fire", "method.iterations=9 method.norm_init=spectral", "FIRE searched"),
        ("fire", "method.scale=keep_norm", "FIRE searched"),
        ("fire_exact", "lr=0.1", "FIRE exact"),
        ("fire_exact", "method.scale=modular method.blend=0.5", "FIRE exact, searched"),
        ("fire+muon", "lr=0.1 method.parts.muon.lr=0.2", "FIRE + Muon"),
        ("fire+muon", "method.parts.fire.blend=0.25 method.parts.muon.lr=0.2", "FIRE searched + Muon"),
        ("fire (blend=0.5)", "", "FIRE (blend=0.5)"),
        ("snp", "method.coef=0.5", "S&P"),
    ],
)
def test_names_follow_the_options(method: str, options: str, name: str) -> None:
    assert label(method, options) == name


def test_the_paper_s_form_is_the_default() -> None:
    default = yaml.safe_load((ROOT / "conf/method/fire.yaml").read_text())
    assert {option: str(default[option]).removesuffix(".0") for option in PAPER} == PAPER


def test_the_first_of_the_best_trials_decides() -> None:
    rows = [
        ("fire", 2, "method.blend=0.5", 0.9),
        ("fire", 1, "lr=1", 0.9),
        ("fire", 0, None, 0.1),
        ("snp", 0, None, 0.3),
    ]
    trials = pd.DataFrame(rows, columns=["method", "trial", "options", "score"])
    assert winners(trials, more=True) == {"fire": "lr=1", "snp": ""}
    assert winners(trials, more=False) == {"fire": "", "snp": ""}


def test_a_table_of_several_streams_says_searched_if_one_was() -> None:
    searches = {"fire": "lr=1"}, {"fire": "method.blend=0.5"}
    assert names(["fire", "snp"], *searches) == {"fire": "FIRE searched", "snp": "S&P"}


@pytest.mark.parametrize("page", ["plasticity.md", "plasticity/earlier/search_of_nine.md"])
def test_no_row_of_a_search_calls_another_form_fire(page: str) -> None:
    text = (ROOT / "docs/results" / page).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| FIRE") and "method." in line]
    assert rows
    for line in rows:
        other_form = any(f"{option}={value}" in line for option, value in OTHER_FORMS)
        assert ("searched" in line.split("|")[1]) == other_form, line
