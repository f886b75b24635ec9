"""docs/tutorial.md shows the code of examples/tutorial.py, and says what it does."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from tests.zygote import ROOT, Zygote

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
CODE = (ROOT / "examples" / "tutorial.py").read_text()


def test_the_page_shows_the_whole_file() -> None:
    shown = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    body = CODE.split("\n\n", 1)[1]
    assert [line for line in shown.splitlines() if line] == [line for line in body.splitlines() if line]


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    smallest = CODE.replace("TASKS, EPOCHS = 12, 30", "TASKS, EPOCHS = 2, 1").replace("steps=300", "steps=3")
    (tmp_path / "tutorial.py").write_text(smallest)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path("tutorial.py")
    assert "3 matrices projected by newton_schulz" in capsys.readouterr().out
    assert (tmp_path / "tutorial.png").exists()


@pytest.mark.slow
def test_the_network_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    results = runpy.run_path(str(ROOT / "examples" / "tutorial.py"))["results"]
    assert results["base"][-1] < results["base"][0] - 0.15
    assert min(results["FIRE"]) > results["FIRE"][0] - 0.05
    assert min(results["full reset"]) > results["full reset"][0] - 0.15
    printed = capsys.readouterr().out
    assert printed.index("plasticity is lost") < printed.index("projected by") < printed.index("no loss of plasticity")


def test_the_sweep_runs(tmp_path: Path, zygote: Zygote) -> None:
    (command,) = re.findall(r"```\n(python -m vision\.train .*?)\npython analysis", PAGE, re.DOTALL)
    *words, multirun = shlex.split(command.replace("\\\n", " "))[3:]
    words = [word for word in words if not word.startswith(("hydra/launcher", "seed=", "benchmark.tasks", "epochs"))]
    answer = zygote.run(tmp_path, "vision.train", *words, "scale=smoke", "tracker=none", "progress=false", multirun)
    assert answer.code == 0, answer.err
    assert len(list(tmp_path.glob("runs/vision/*/DONE"))) == 4
