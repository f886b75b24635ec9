"""Downloads of published archives: a wrong or broken one is never taken for the file."""

import hashlib
import http.server
import threading

import pytest

from harness.config.errors import ConfigError
from vision.data.files import fetch

CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; /breaks stops half way."""

    def do_GET(self):
        if self.path not in ("/whole", "/breaks"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/breaks" else CONTENT)

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_download_that_broke_off_is_made_again(url, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot download .*/breaks \(.*\): put the file at") as caught:
        fetch(f"{url}/breaks", tmp_path / "file", MD5)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "file").exists()
    fetch(f"{url}/whole", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(("page", "md5"), [("/whole", "0" * 32), ("/nothing", MD5)])
def test_another_file_or_none_is_refused(url, tmp_path, page, md5):
    with pytest.raises(ConfigError, match=f"cannot download .*{page}"):
        fetch(url + page, tmp_path / "file", md5)
    assert not (tmp_path / "file").exists()
