"""Two panels of the paper at their real sizes on tiny data, as scripts/dry_run.sh runs all of them."""

import json
import time
from pathlib import Path

import pytest

from scripts import dry_run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("panel", ["a_cifar10", "asterix"])
def test_a_panel_is_killed_twice_resumed_and_drawn(
    panel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    monkeypatch.setattr(dry_run, "TABLE", tmp_path / "table.csv")
    monkeypatch.setattr(dry_run, "RUNS", runs)
    monkeypatch.setenv("RUNS", str(runs))
    begin = time.perf_counter()
    dry_run.main([panel])
    elapsed = time.perf_counter() - begin
    found = json.loads((runs / f"{panel}.json").read_text())
    assert found["ok"], found
    assert 0 < found["boundary"] < elapsed  # both by the clock; those of the processor may be fewer
    assert found["seconds"] > 0
    assert f"\n{panel},yes," in (tmp_path / "table.csv").read_text()
