"""The site as it is built: no warning, nothing fetched, pictures described, fit for a screen and a phone."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
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
        for link in parts.links if page.name not in ("404.html", "report.html") else []:
            path = unquote(link.partition("#")[0])
            if not re.match(r"[a-z]+:", path):
                assert (page.parent / path).resolve().exists(), (page.name, link, "leads nowhere")


def test_the_report_of_the_committed_results_is_part_of_it(site: Path) -> None:
    text = (site / "report.html").read_text()
    assert "Random labels" in text
    assert "SAC" in text or "sac" in text


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Of the site, served on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 900, "light"), (390, 844, "dark")])
def test_pages_fit_a_screen_and_a_phone(
    site: Path, address: str, width: int, height: int, scheme: str, tmp_path: Path
) -> None:
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with browser.Browser(program, tmp_path / "profile", (width, height)) as page:
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for path in sorted(site.glob("*.html")) + sorted(site.glob("re*/*.html")):
            if path.name in ("404.html", "report.html"):
                continue
            page.open(address + str(path.relative_to(site)))
            assert page.ask("document.documentElement.scrollWidth") <= width + 1, (path.name, "wider than the window")
            found = page.ask("document.body.getAttribute('data-md-color-scheme')")
            assert found == {"light": "default", "dark": "slate"}[scheme]
            # Figures are black on nothing or white: in the dark they need a white ground.
            ground = "[...document.querySelectorAll('article img')].map(i => getComputedStyle(i).backgroundColor)"
            assert set(page.ask(ground)) <= {"rgb(255, 255, 255)"}, path.name
            broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            assert page.ask(broken) == [], path.name
        assert not page.errors
        assert all(url.startswith((address, "data:", "blob:")) for url in page.requests)
