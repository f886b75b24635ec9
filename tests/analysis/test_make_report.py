"""The HTML report: as text, and in a real browser."""

import json
import re
from pathlib import Path

import pytest

from analysis import make_report
from tests.analysis import browser
from tests.analysis.synthetic import write_run, write_sweep

NASTY = "</script><script>document.title='broken'</script>"
ACTS = """<script>
document.querySelector(".legend button[data-label='Base']").click();
const box = document.querySelector("svg.chart").getBoundingClientRect();
const at = {clientX: box.x + box.width / 2, clientY: box.y + 20};
document.querySelector("svg.chart").dispatchEvent(new PointerEvent("pointermove", at));
</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("report")
    write_sweep(root / "runs", seeds=range(2), dataset={"name": "digits", "note": NASTY})
    write_sweep(root / "runs", ("fire",), range(1), dataset={"name": "digits", "note": "other"})
    write_run(root / "runs", "fire", 8, done=False, name="unfinished")
    assert make_report.main(["--runs", str(root / "runs"), f"--out={root / 'report.html'}"]) == 0
    return root / "report.html"


def test_the_page_stands_alone_and_holds_every_method(report):
    text = report.read_text()
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert [g["label"] for g in data["settings"][0]["groups"]] == ["Base", "Full reset", "S&P", "FIRE"]
    assert data["settings"][0]["groups"][3]["mean"][-1] == pytest.approx(0.8705)
    assert any("unfinished" in item for item in data["left_out"])


@pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
def test_a_browser_draws_it_hides_a_method_on_a_click_and_shows_values_under_the_mouse(report, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(report.read_text().replace("</body>", f"{ACTS}</body>"))
    shown = browser.document(page.as_uri(), tmp_path / "profile")
    first, _ = shown.split("<section>")[1:3]
    assert re.findall(r'class="curve" data-label="([^"]+)" d="M', first) == ["Full reset", "S&amp;P", "FIRE"]
    assert first.count('class="band"') == 3
    assert re.search(r'aria-pressed="false"[^>]*>.*?Base \(n=2\)', first)
    assert re.search(r"<h3>Results</h3>.*<td>FIRE</td>.*<h3>Boundaries</h3>.*<td>FIRE</td>", first, re.S)
    assert re.search(r'id="tip"[^>]*>.*Epoch.*FIRE: 0\.\d+ \[', shown)
    assert "note=&lt;/script&gt;" in shown
    assert "<title>FIRE: results</title>" in shown
