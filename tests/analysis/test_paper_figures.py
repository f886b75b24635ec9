"""Figures for a two-column paper: each script's fit a column and a page, and their text stays text."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from analysis import plotting, style
from analysis.forms import names
from analysis.make_tables import PAGES, STREAM, Page
from analysis.result_figures import stream
from analysis.runs import settings
from analysis.sources import load
from analysis.summary import methods, read, summarise
from fire_core.tools import convergence
from tests.analysis.synthetic import write_sweep

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def of_runs(width: str, folder: Path) -> Figure:
    write_sweep(folder / width)
    return plotting.setting_figure(settings(load([str(folder / width)])[0])[0], style.Palette(["fire"]), width=width)


def of_a_stream(width: str, folder: Path) -> Figure:
    frame = read(RESULTS / "plasticity" / "random_labels_digits.csv")
    return stream("Random labels", frame, summarise(frame, STREAM), names(methods(frame)), False, width)


def of_page(name: str, csv: str, width: str, folder: Path) -> Figure:
    """The figure of one file alone."""
    folder.mkdir(exist_ok=True)
    shutil.copy(RESULTS / name / csv, folder)
    page = Page(folder, width)
    PAGES[name](page)
    (figure,) = page.figures.values()
    return figure()


of_texts = partial(of_page, "language_streams", "domains.csv")
of_agents = partial(of_page, "agents", "continual_cartpole_untuned.csv")


@pytest.mark.parametrize("draw", [of_runs, of_a_stream, of_texts, of_agents])
def test_it_fits_a_column_or_a_page_and_embeds_its_fonts(draw: Callable[[str, Path], Figure], tmp_path: Path) -> None:
    style.use()
    figures = {width: draw(width, tmp_path / "runs") for width in ("column", "page")}
    assert figures["page"].get_size_inches()[0] == style.PAGE
    assert figures["column"].get_size_inches()[0] == style.COLUMN
    embedded(*plotting.save(figures["column"], tmp_path / "figure", ["pdf"]))


def embedded(path: Path) -> None:
    """TrueType fonts in the file, and no letters that are drawings (Type 3), which publishers refuse."""
    text = path.read_bytes()
    assert b"/FontFile2" in text
    assert b"/Type3" not in text


def test_the_convergence_tool_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        convergence.Row(label, "newton_schulz", "frobenius", n, 1.0, 1.0 / n, 1.0, 0.1, 1.0, 1.0, 1.0)
        for label in ("a", "b", "c")
        for n in (1, 2)
    ]
    sizes: list[float] = []
    kept = Figure.savefig

    def save(figure: Figure, *given: object, **named: object) -> None:
        sizes.append(figure.get_size_inches()[0])
        kept(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", save)
    convergence.plot(rows, [tmp_path / "convergence.pdf"], "column")
    convergence.plot(rows, [tmp_path / "convergence.png"])
    assert sizes == pytest.approx([3.4, 3 * 3.4])
    embedded(tmp_path / "convergence.pdf")
