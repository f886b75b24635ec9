"""A headless Chromium from the system, driven over its debugging pipe: no driver and no package needed."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. Messages are JSON ended by a zero byte: ours on its descriptor 3, its answers on 4."""

    def __init__(self, program: str, profile: Path, size: tuple[int, int] = (1200, 1000)) -> None:
        ours_in, its_out = os.pipe()
        its_in, ours_out = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        # Chromium wants descriptors 3 and 4 and nothing else; the shell puts them there.
        shell = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program, *options, "about:blank"],
            pass_fds=(its_in, its_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(its_in)
        os.close(its_out)
        self.to, self.back, self.number, self.requests = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb"), 0, []
        self.session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.send("Page.enable")
        self.send("Runtime.enable")
        self.send("Network.enable")
        self.errors: list[str] = []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.to.close()
        self.process.kill()
        self.process.wait()
        self.back.close()

    def receive(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self.back.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has gone")
            raw += byte
        message = json.loads(raw)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]))
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while (answer := self.receive()).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        while self.receive().get("method") != "Page.loadEventFired":
            pass

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        got = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(json.dumps(got["exceptionDetails"]))
        return got["result"].get("value")

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        element = f"const e = document.querySelector({json.dumps(selector)});"
        middle = "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2];"
        script = f"(() => {{ {element} e.scrollIntoView({{block: 'center'}}); {middle} }})()"
        x, y = self.ask(script)
        return x, y

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """A real click of the mouse: it hits whatever lies on top at that place."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
