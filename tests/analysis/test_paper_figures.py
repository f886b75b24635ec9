"""Figures for a two-column paper: they fit a column and a page, and their text stays text."""

from pathlib import Path

from analysis import plotting, style
from analysis.runs import settings
from analysis.sources import load
from tests.analysis.synthetic import write_sweep


def test_a_figure_fits_a_column_or_a_page_and_embeds_its_fonts(tmp_path: Path) -> None:
    style.use()
    write_sweep(tmp_path / "runs", seeds=range(2))
    (setting,) = settings(load([str(tmp_path / "runs")])[0])
    palette = style.Palette(group.method for group in setting.groups)
    figures = {width: plotting.setting_figure(setting, palette, width) for width in ("page", "column")}
    assert figures["page"].get_size_inches()[0] == style.PAGE
    assert figures["column"].get_size_inches()[0] == style.COLUMN
    (file,) = plotting.save(figures["column"], tmp_path / "figure", ["pdf"])
    text = file.read_bytes()
    assert b"/FontFile2" in text, "TrueType fonts"
    assert b"/Type3" not in text, "letters that are drawings, which publishers refuse"
