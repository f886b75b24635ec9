"""What `mkdocs build` does beside the pages: the version below each, a report of all committed runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def on_config(config: Any) -> None:
    """mkdocs calls this first."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "fire_core/__init__.py").read_text())
    assert version is not None
    config["copyright"] = f"Version {version[1]}"


def on_post_build(config: Any) -> None:
    """mkdocs calls this when the pages are written. Makes `report.html`, self-contained."""
    results = sorted(str(file.with_suffix("").with_suffix(".csv")) for file in ROOT.glob("docs/studies/*/*.runs.json"))
    target = Path(config["site_dir"]) / "report.html"
    command = [sys.executable, "analysis/make_report.py", "--runs", *results, "--out", str(target)]
    command += ["--back", "studies/gallery.html"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
