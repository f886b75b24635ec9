"""The site as it is built: no warning, nothing fetched, pictures described, fit for a screen and a phone."""

import functools
import http.server
import json
import queue
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.analysis import browser
from tests.zygote import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("material", reason="pip install -e '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


class Parts(HTMLParser):
    """What a page loads when it is read, and its pictures."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.pictures: list[tuple[str, str]] = []
        self.links: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        if tag == "img":
            self.pictures.append((found.get("src", ""), found.get("alt", "")))
        if tag == "a":
            self.links.append(found.get("href", ""))
        if tag in ("script", "img", "iframe", "source"):
            self.loads.append(found.get("src", ""))
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(found.get("href", ""))


def test_nothing_is_fetched_and_every_picture_is_there_and_described(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        parts = Parts(page)
        assert not [url for url in parts.loads if url.startswith(("http", "//"))], page.name
        for source, words in parts.pictures:
            if not source.startswith("data:"):
                assert (page.parent / source).resolve().is_file(), (page.name, source)
            assert len(words) > 15, (page.name, source, "needs an alternative text")
        for link in parts.links if page.name != "404.html" else []:
            path = unquote(link.partition("#")[0])
            if not re.match(r"[a-z]+:", path):
                assert (page.parent / path).resolve().exists(), (page.name, link, "leads nowhere")


def test_formulae_are_mathml_and_all_of_their_latex_is_known(site: Path) -> None:
    written = {page.name for page in sorted(site.rglob("*.html")) if "<math" in page.read_text()}
    assert written >= {"paper.html", "scales.html", "glossary.html"}
    for page in sorted(site.rglob("*.html")):
        text = page.read_text()
        assert "arithmatex" not in text, page.name
        for formula in re.findall(r"<math.*?</math>", text, re.DOTALL):
            assert "\\" not in formula, (page.name, formula)


def test_the_report_of_the_committed_results_is_part_of_it_and_links_back(site: Path) -> None:
    text = (site / "report.html").read_text()
    assert Parts(site / "report.html").links == ["studies/gallery.html"]
    assert 'href="../report.html"' in (site / "studies" / "gallery.html").read_text()
    assert "Random labels" in text
    assert "Humanoid-v5" in text


MEASURE = """<script type="module">
const found = [];
for (const path of PATHS) {
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 844px";
  frame.src = path;
  await new Promise((done) => { frame.onload = done; document.body.append(frame); });
  const page = frame.contentDocument, images = [...page.images];
  await page.fonts.ready;
  const edge = page.documentElement.clientWidth;
  const lines = (node) => new Set([...node.getClientRects()].map((box) => box.top)).size;
  found.push({
    path, scheme: page.body.getAttribute("data-md-color-scheme"),
    wide: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    cut: [...page.querySelectorAll("pre > code")].some((code) => code.scrollWidth > code.clientWidth + 1),
    grounds: [...page.querySelectorAll("article img")].map((i) => getComputedStyle(i).backgroundColor),
    hidden: [...page.querySelectorAll("article td, article th")].filter((cell) => {
      const box = cell.getBoundingClientRect(), wrap = cell.closest(".md-typeset__scrollwrap");
      return box.width && (box.right > edge + 1 || (wrap && wrap.scrollWidth > wrap.clientWidth + 1));
    }).map((cell) => cell.innerText),
    unseen: [...page.querySelectorAll("article table:not([class])")].filter((table) => [...table.tBodies[0].rows].some(
      (row) => [...row.cells].some((cell) => cell.innerText.trim() && !cell.getBoundingClientRect().height))).length,
    broken_words: [...page.querySelectorAll("article :not(pre) > code .word")].filter((word) => lines(word) > 1)
      .map((word) => word.innerText),
    long_words: [...page.querySelectorAll("article :not(pre) > code")].flatMap((code) => [...code.childNodes])
      .filter((node) => node.nodeType === Node.TEXT_NODE).flatMap((node) => node.data.split(" "))
      .filter((word) => word.length > 40),
    flat: [...page.querySelectorAll("math")].filter((formula) => !formula.getBoundingClientRect().height).length,
    broken: images.filter((i) => i.complete && !i.naturalWidth).map((i) => i.src),
  });
  frame.remove();
}
await fetch("/found", {method: "POST", body: JSON.stringify(found)});
</script>"""


@pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("width", "scheme", "which"), [(1280, "default", "**/*.html"), (390, "slate", "**/*.html")])
def test_pages_fit_a_screen_by_day_and_a_phone_by_night(
    site: Path, width: int, scheme: str, which: str, tmp_path: Path
) -> None:
    pages = site.glob(which)
    paths = [str(page.relative_to(site)) for page in sorted(pages) if page.name not in ("404.html", "report.html")]
    script = MEASURE.replace("PATHS", json.dumps(paths)).replace("WIDTH", str(width))
    (site / "all.htm").write_text(f"<!doctype html><body>{script}</body>")

    answer: queue.Queue[bytes] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given: object) -> None:
            pass

        def do_POST(self) -> None:
            answer.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/all.htm"
        dark = f"--blink-settings=preferredColorScheme={0 if scheme == 'slate' else 1}"
        program = subprocess.Popen(
            browser.command(url, tmp_path, dark, "--window-size=1400,1000"), stderr=subprocess.DEVNULL
        )
        try:
            found = json.loads(answer.get(timeout=300))
        finally:
            program.kill()
            program.wait()
            server.shutdown()
    assert [page["path"] for page in found] == paths
    for page in found:
        assert page["wide"] <= 1, (page["path"], "wider than the window")
        assert width < 1280 or not page["cut"], (page["path"], "code is cut")
        assert page["scheme"] == scheme
        assert set(page["grounds"]) <= {"rgb(255, 255, 255)"}, (page["path"], "figures need a white ground in the dark")
        assert page["broken"] == [], page["path"]
        assert page["hidden"] == [], (page["path"], "columns are hidden")
        assert page["unseen"] == 0, (page["path"], "values are not shown")
        assert page["broken_words"] == [], (page["path"], "commands break in a word")
        assert page["long_words"] == [], (page["path"], "words that no phone can show in a line need places to break")
        assert page["flat"] == 0, (page["path"], "formulae are not drawn")
