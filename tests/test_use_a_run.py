"""The snippet of docs/use_a_run.md."""

import re
from pathlib import Path

import pytest
import torch

from tests.programs import VISION
from tests.zygote import ROOT


def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = VISION.run(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "use_a_run.md").read_text(), re.DOTALL)
    code = re.sub(r'load\("[^"]*"\)', f"load({str(folder)!r})", code)
    monkeypatch.chdir(tmp_path)
    exec(code, {"images": torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)})
    assert "test/accuracy" in capsys.readouterr().out
    assert torch.load("weights.pt", weights_only=True)
