"""Figures for a two-column paper: each script's fit a column and a page, and their text stays text."""

import shutil
from pathlib import Path

import pytest

from analysis import plotting, style
from analysis.pages import PAGES, Page

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    ("name", "csv"),
    [
        ("plasticity", "random_labels_digits"),
        ("language_streams", "permuted_text"),
        ("agents", "high_replay_ratio_cheetah"),
    ],
)
def test_it_fits_a_column_or_a_page_and_embeds_its_fonts(name: str, csv: str, tmp_path: Path) -> None:
    style.use()
    shutil.copy(RESULTS / name / f"{csv}.csv", tmp_path)
    figures = {}
    for width in ("page", "column"):
        page = Page(tmp_path, width)
        PAGES[name](page)
        figures[width] = page.figures[csv]()
    assert figures["page"].get_size_inches()[0] == style.PAGE
    assert figures["column"].get_size_inches()[0] == style.COLUMN
    embedded(*plotting.save(figures["column"], tmp_path / "figure", ["pdf"]))


def embedded(path: Path) -> None:
    """TrueType fonts in the file, and no letters that are drawings (Type 3), which publishers refuse."""
    text = path.read_bytes()
    assert b"/FontFile2" in text
    assert b"/Type3" not in text
