"""The HTML report: as text, and in a real browser."""

import json
import os
import re
from pathlib import Path

import pytest

from analysis import make_report
from tests.analysis import browser
from tests.analysis.synthetic import write_run, write_sweep

NASTY = "</script><script>document.title='broken'</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("report")
    write_sweep(root / "runs", seeds=range(2), dataset={"name": "digits", "note": NASTY})
    write_run(root / "runs", "fire", 8, done=False, name="unfinished")
    folder = next((root / "runs" / "vision").glob("*-fire-s0-*"))
    matrices = {"head.weight": {"before": [3.0, 1.0, 0.1], "after": [1.0, 1.0, 0.9]}}
    (folder / "spectra.json").write_text(json.dumps({"1": matrices}))
    assert make_report.main(["--runs", str(root / "runs"), f"out={root / 'report.html'}"]) == 0
    return root / "report.html"


def embedded(report: Path) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', report.read_text(), re.S)[1])


def test_the_page_stands_alone_and_holds_every_run(report):
    text = report.read_text()
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", text)
    data = embedded(report)
    assert len(data["runs"]["rows"]) == len(data["details"]) == 8
    assert [g["label"] for g in data["settings"][0]["groups"]] == ["Base", "Full reset", "S&P", "FIRE"]
    assert data["settings"][0]["groups"][3]["mean"][-1] == pytest.approx(0.8705)
    assert any("unfinished" in item for item in data["left_out"])
    assert "abc123" in data["details"][0]


def test_no_runs_is_an_error_and_no_file(tmp_path, capsys):
    assert make_report.main(["--runs", str(tmp_path), f"out={tmp_path / 'r.html'}"]) != 0
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "r.html").exists()


def test_the_file_is_named_as_a_page(report, tmp_path, capsys):
    runs = str(report.parent / "runs")
    for given, written in (("a", "a.html"), ("b.v2", "b.v2.html"), (".", "report.html")):
        assert make_report.main(["--runs", runs, f"out={tmp_path / given}"]) == 0
        assert (tmp_path / written).read_text().startswith("<!doctype html>")
    assert f"wrote {tmp_path / 'report.html'}" in capsys.readouterr().out


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with browser.Browser(program, tmp_path_factory.mktemp("profile")) as page:
        page.open(report.as_uri())
        yield page
        assert not page.errors
        assert all(url.startswith("file:") for url in page.requests)


CURVES = "[...document.querySelectorAll('section:first-child path.curve')].map(e => e.dataset.label)"


def test_a_click_on_a_method_hides_and_shows_its_curve(page):
    everything = ["Base", "Full reset", "S&P", "FIRE"]
    assert page.ask(CURVES) == everything
    page.click(".legend button[data-label='FIRE']")
    assert page.ask(CURVES) == everything[:3]
    page.click(".legend button[data-label='Base']")
    page.click("#all")
    assert page.ask(CURVES) == everything


def test_hovering_shows_the_values_there(page):
    x, y = page.place("svg.chart")
    page.move(x, y)
    tip = page.ask("document.getElementById('tip').innerText")
    assert "Epoch" in tip
    assert re.search(r"FIRE: 0\.\d+ \[", tip)
    page.move(x, 5)
    assert page.ask("document.getElementById('tip').hidden")


def test_smoothing_and_bands_change_the_drawing(page):
    shape = "document.querySelector('path.curve[data-label=FIRE]').getAttribute('d')"
    before = page.ask(shape)
    page.click("#smooth")  # the middle of the slider
    assert page.ask("+document.getElementById('smooth').value") > 0.3
    assert page.ask(shape) != before
    page.ask("(() => { const s = document.getElementById('smooth'); s.value = 0; s.oninput({target: s}); })()")
    assert page.ask(shape) == before
    assert page.ask("document.querySelectorAll('path.band').length") == 4
    page.click("#bands")
    assert page.ask("document.querySelectorAll('path.band').length") == 0
    page.click("#bands")


def test_a_click_on_a_heading_sorts_by_number(page):
    column = "[...document.querySelector('.tables tbody').rows].map(row => row.cells[2].innerText)"
    page.click(".tables th:nth-child(3)")
    up = page.ask(column)
    assert len(up) == 4
    assert up == sorted(up)
    page.click(".tables th:nth-child(3)")
    assert page.ask(column) == up[::-1]


def test_a_click_on_a_run_shows_its_configuration_and_nothing_breaks_out(page):
    page.click("#runs tbody tr")
    shown = page.ask("document.getElementById('config').innerText")
    assert "git_commit: abc123" in shown
    assert NASTY in shown
    assert page.ask("document.title") == "FIRE: results"


def test_spectra_open_on_a_click(page):
    assert page.ask("document.querySelectorAll('.spectra svg').length") == 0
    page.click("details summary")
    for _ in range(100):  # the element tells that it opened in its own time
        if page.ask("document.querySelectorAll('.spectra svg').length"):
            break
        page.ask("new Promise(done => setTimeout(done, 50))")
    assert page.ask("document.querySelectorAll('.spectra svg').length") == 1


def test_the_screenshot_is_not_blank(page, tmp_path):
    import matplotlib.image

    file = Path(os.environ.get("FIRE_SCREENSHOT", tmp_path / "report.png"))
    page.screenshot(file)
    image = matplotlib.image.imread(file)
    assert image.shape[1] >= 1000
    assert (image[..., :3].min(-1) < 0.5).mean() > 0.005  # dark pixels: text and lines


def test_every_table_fits_the_page(page):
    wide = "[...document.querySelectorAll('.tables')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.ask(wide) == 0
