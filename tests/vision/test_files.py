"""Archives and downloads: nothing is written outside the folder, a broken download resumes, damage leaves nothing."""

import hashlib
import http.server
import tarfile
import threading
import zipfile

import numpy as np
import pytest

from harness.config.errors import ConfigError
from vision.data.files import fetch, unpack

# ---- archives


@pytest.mark.parametrize("name", ["../evil.txt", "top/../../evil.txt", "/tmp/evil.txt", "..\\evil.txt", "C:/evil.txt"])
def test_zip_entries_that_point_outside_are_refused(name, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("top/good.txt", "good")
        file.writestr(name, "evil")
    (tmp_path / "inner").mkdir()
    with pytest.raises(ConfigError, match=r"is refused: its entry .* points outside"):
        unpack(tmp_path / "a.zip", tmp_path / "inner" / "top")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.zip", "inner"]


def test_zip_links_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        link = zipfile.ZipInfo("top/link")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc")
    with pytest.raises(ConfigError, match="is refused"):
        unpack(tmp_path / "a.zip", tmp_path / "top")


def test_tar_entries_that_point_outside_are_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("../evil.txt")
        tar.addfile(entry)
    with pytest.raises(ConfigError, match="is refused"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "top")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz"]


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_damaged_archives_leave_nothing_behind(suffix, tmp_path):
    archive = tmp_path / f"a{suffix}"
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "file").write_bytes(np.random.default_rng(0).bytes(20_000))
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.write(tmp_path / "top" / "file", "top/file")
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(tmp_path / "top", "top")
    archive.write_bytes(archive.read_bytes()[:10_000])
    (tmp_path / "new").mkdir()
    with pytest.raises(ConfigError, match=f"a{suffix} is damaged"):
        unpack(archive, tmp_path / "new" / "top")
    assert list((tmp_path / "new").iterdir()) == []


def test_an_archive_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("other/file.txt", "x")
    with pytest.raises(ConfigError, match="does not hold the folder top"):
        unpack(tmp_path / "a.zip", tmp_path / "top")


# ---- downloads


CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; /ranges honours Range requests, /whole does not, /breaks stops half way."""

    def do_GET(self):
        self.server.ranges.append(self.headers.get("Range"))
        start = 0
        if self.path == "/ranges" and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if self.path not in ("/ranges", "/whole", "/breaks"):
            return self.send_error(404)
        if start >= len(CONTENT):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : len(CONTENT) // 2] if self.path == "/breaks" else CONTENT[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.ranges = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("done", [0, 1000, len(CONTENT)])
@pytest.mark.parametrize("page", ["/ranges", "/whole"])
def test_a_download_goes_on_where_it_stopped(server, tmp_path, page, done):
    path = tmp_path / "file"
    if done:
        (tmp_path / "file.part").write_bytes(CONTENT[:done])
    fetch(server.url + page, path, MD5)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={done}-" if done else None]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_a_download_that_breaks_off_keeps_its_part(server, tmp_path):
    with pytest.raises(ConfigError, match=r"broke off.*resumes where it stopped; or put the file at") as caught:
        fetch(server.url + "/breaks", tmp_path / "file", MD5)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[: len(CONTENT) // 2]
    fetch(server.url + "/ranges", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_download_with_the_wrong_checksum_is_removed(server, tmp_path):
    with pytest.raises(ConfigError, match="wrong checksum"):
        fetch(server.url + "/whole", tmp_path / "file", "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_refuses_or_is_silent_or_absent(server, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot download .*/nothing \(Not Found\); or put the file at"):
        fetch(server.url + "/nothing", tmp_path / "file", MD5)
    server.shutdown()  # it still listens, but nobody answers
    with pytest.raises(ConfigError, match=r"cannot download .*timed out"):
        fetch(server.url + "/whole", tmp_path / "file", MD5, timeout=0.2)
    server.server_close()
    with pytest.raises(ConfigError, match=r"cannot download .*refused"):
        fetch(server.url + "/whole", tmp_path / "file", MD5)
