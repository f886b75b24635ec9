"""A line or row is called FIRE if its runs had the paper's form, wherever it is named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis import figures, make_report, plotting, rl, style, tables
from analysis.forms import PAPER, STEPS, label_of_config
from analysis.runs import settings
from analysis.sources import load
from tests.analysis.synthetic import rows, write_run
from tests.zygote import ROOT

FIRE = {"name": "fire", "solver": "newton_schulz", "iterations": 10, "norm_init": "frobenius", "scale": "modular",
        "blend": 1.0, "variance_factor": 1.0, "tol": None, "layout": None}  # fmt: skip
EXACT = {"name": "fire_exact", "solver": "exact", "scale": "modular", "blend": 1.0}
CHAIN = {"name": "fire+muon", "of": "fire+muon", "parts": {"fire": FIRE | {"blend": 0.5}, "muon": {}, "snp": {}}}


@pytest.mark.parametrize(
    ("config", "detail", "name"),
    [
        ({"method": "fire"}, "", "FIRE"),
        ({"method": FIRE | {"layout": "qk"}}, "layout=qk", "FIRE (layout=qk)"),
        ({"method": FIRE | {"iterations": 5}, "program": "language"}, "", "FIRE"),
        ({"method": FIRE | {"iterations": 5}}, "", "FIRE (iterations=5)"),
        ({"method": FIRE | {"norm_init": "spectral"}}, "layout=qk", "FIRE (norm_init=spectral, layout=qk)"),
        ({"method": FIRE | {"iterations": 9}, "tuned": "searched"}, "", "FIRE, 9 steps"),
        ({"method": FIRE | {"scale": "orthogonal"}, "tuned": "searched"}, "", "FIRE searched"),
        ({"method": EXACT | {"blend": 0.5}, "tuned": "searched"}, "", "FIRE exact, searched"),
        ({"method": EXACT | {"name": "fire_half", "blend": 0.5}}, "", "FIRE, half of the way"),
        ({"method": EXACT | {"name": "fire_half", "blend": 0.25}}, "", "FIRE, half of the way (blend=0.25)"),
        ({"method": FIRE | {"name": "fire_half", "blend": 0.5}}, "", "FIRE, half of the way"),
        ({"method": CHAIN}, "", "FIRE (blend=0.5) + Muon"),
        ({"method": CHAIN, "tuned": "searched"}, "", "FIRE searched + Muon"),
    ],
)
def test_names_follow_the_options_of_a_run(config: dict[str, Any], detail: str, name: str) -> None:
    assert label_of_config(config, detail) == name


def test_the_paper_s_form_is_the_default() -> None:
    default = yaml.safe_load((ROOT / "conf/method/fire.yaml").read_text())
    assert {option: str(default[option]).removesuffix(".0") for option in PAPER} == PAPER
    assert str(default["iterations"]) == STEPS


def test_figures_tables_and_reports_take_their_names_there(tmp_path: Path) -> None:
    """Of runs with a search's options, as `tuned=searched` gives them."""
    style.use()
    searched = FIRE | {"norm_init": "spectral", "scale": "keep_norm"}
    for seed in range(2):
        write_run(tmp_path, "base", seed, metric="eval/return", rows_=rows("base", seed, 3, "eval/return"))
        write_run(tmp_path, "fire", seed, hyper=searched, tuned="searched", metric="eval/return",
                  rows_=rows("fire", seed, 3, "eval/return"))  # fmt: skip
    runs, left_out = load([str(tmp_path)])
    (setting,) = found = settings(runs)
    named = ["Base", "FIRE searched"]
    assert list(tables.results(setting)["method"]) == named
    assert list(tables.results(setting))[-2:] == ["vs Base", "vs FIRE searched"]
    for frame in (tables.convergence(found), tables.at_boundaries(setting), rl.table(found)):
        assert list(frame["method"]) == named
    palette = style.Palette(["base", "fire"])
    panel = figures.Grid("x", "x", ((figures.Panel("x", "rl", setting.dataset),),))
    for figure in (plotting.setting_figure(setting, palette), figures.grid_figure(panel, found, palette)):
        assert sorted(text.get_text() for text in figure.legends[0].texts) == named
        plotting.plt.close(figure)
    text = make_report.report_page(runs, left_out)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert [group["label"] for group in data["settings"][0]["groups"]] == named
    assert not re.search(r'"FIRE"|>FIRE<', text)
