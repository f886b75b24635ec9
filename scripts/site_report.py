"""Add to the site that mkdocs builds: the version below each page, and a report of all committed runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def on_config(config: Any) -> None:
    """Put the version below each page; mkdocs calls this first."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "fire_core/__init__.py").read_text())
    assert version is not None
    config["copyright"] = f"Version {version[1]}"


def on_post_build(config: Any) -> None:
    """Write the self-contained `report.html`; mkdocs calls this when the pages are written."""
    results = sorted(str(file.with_suffix("").with_suffix(".csv")) for file in ROOT.glob("docs/studies/*/*.runs.json"))
    target = Path(config["site_dir"]) / "report.html"
    command = [sys.executable, "analysis/make_report.py", "--runs", *results, "--out", str(target)]
    command += ["--back", "studies/gallery.html"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
