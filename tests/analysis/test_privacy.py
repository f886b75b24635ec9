"""Exports and reports hold no path, no command line and no name of a user or a machine, unless they are asked for."""

import getpass
import json
import platform
from pathlib import Path

import pytest

from analysis import make_figures, make_report
from tests.analysis.synthetic import write_run


@pytest.mark.parametrize("asked", [False, True])
def test_places_are_left_out_unless_asked_for(asked: bool, tmp_path: Path) -> None:
    home = "/home/somebody/secret_folder"
    paths = {"runs": f"{home}/runs", "data": f"{home}/data"}
    folder = write_run(tmp_path / "runs", "fire", 0, paths=paths, dataset={"name": "folder", "path": f"{home}/birds"})
    about = {"command": ["python", f"{home}/vision/train.py"], "python": "3.12", "git": "abc"}
    (folder / "env.json").write_text(json.dumps(about))
    write_run(tmp_path / "runs", "base", 0, done=False)
    options = [f"runs={tmp_path / 'runs'}", *(["with_paths=true"] if asked else [])]
    assert make_figures.main([*options, f"out={tmp_path / 'out'}", f"export={tmp_path / 'small.csv'}"]) == 0
    assert make_report.main([*options, f"out={tmp_path / 'report.html'}"]) == 0
    for file in ("small.runs.json", "small.csv", "small.provenance.json", "report.html"):
        text = (tmp_path / file).read_text()
        assert ("secret_folder" in text) == (asked and file in ("small.runs.json", "report.html")), file
        assert (str(tmp_path) in text) == (asked and file == "report.html"), file
        if not asked:
            for name in (getpass.getuser(), platform.node()):
                assert f"/{name}/" not in text
    assert "birds" in (tmp_path / "small.runs.json").read_text(), "which data set it was is kept"
