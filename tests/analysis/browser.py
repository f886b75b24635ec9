"""A headless Chromium from the system: what a page holds, and what it sends."""

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def find() -> str | None:
    """The program; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def command(url: str, profile: Path, *options: str) -> list[str]:
    """That opens a page."""
    program = find()
    assert program is not None
    return [program, *QUIET, f"--user-data-dir={profile}", *options, url]


def document(url: str, profile: Path) -> str:
    """The page as HTML, once it is loaded and its scripts have run."""
    done = subprocess.run(command(url, profile, "--dump-dom"), capture_output=True, text=True, check=True, timeout=300)
    return done.stdout
