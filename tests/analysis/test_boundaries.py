"""Rows of boundaries are apart from a run's history, whichever way the run wrote them."""

import json
from pathlib import Path

from analysis.curves import phase_points
from analysis.runs import Run
from analysis.sources import small
from analysis.sources.folders import read_folder
from tests.analysis.synthetic import rows_of_their_own, write_run

IDENTITY = {"run": {"method": {"name": "fire"}, "seed": 0, "lr": 0.1, "numerics": 1}, "execution": {"threads": 1}}


def both(tmp_path: Path) -> tuple[Run, Run]:
    """A run as it was logged earlier, and as it is logged now."""
    earlier = write_run(tmp_path / "earlier", "fire")
    now = write_run(tmp_path / "now", "fire", rows_=rows_of_their_own("fire"))
    return read_folder(earlier), read_folder(now)


def test_both_ways_of_logging_are_the_same_run(tmp_path: Path) -> None:
    earlier, now = both(tmp_path)
    for run in (earlier, now):
        assert len(run.history) == 40
        assert not [name for name in run.history if name.startswith("boundary")]
        assert run.boundaries["step"].tolist() == [200]
        assert run.boundaries["phase"].tolist() == [1]
        assert run.boundaries["boundary/sfe"].tolist() == [20.0]
    points = [phase_points(run, "test/accuracy", run.x).tolist() for run in (earlier, now)]
    assert points[0] == points[1]
    assert points[0][20] == [1, 100, 0.45]  # what was measured right after the method had acted


def test_identity_is_read_from_its_file(tmp_path: Path) -> None:
    """Two runs that differ in how they are executed, not in what they are, belong to one setting."""
    runs = []
    for number, threads in enumerate((1, 2)):
        folder = write_run(tmp_path, "fire", 0, name=f"run-{number}", threads=threads, renamed=number)
        (folder / "identity.json").write_text(json.dumps({**IDENTITY, "execution": {"threads": threads}}))
        runs.append(read_folder(folder))
    assert runs[0].setting == runs[1].setting
    assert '"numerics": 1' in runs[0].setting
    assert runs[0].config["renamed"] != runs[1].config["renamed"]
    small.write(runs, tmp_path / "small.csv")
    assert [kept.setting for kept in small.read(tmp_path / "small.csv")] == [run.setting for run in runs]
