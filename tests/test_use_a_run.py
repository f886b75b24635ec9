"""The snippets of docs/use_a_run.md."""

import re
from pathlib import Path

import pytest
import torch

import harness
from tests.programs import DQN, SAC, VISION, Program
from tests.zygote import ROOT

SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "use_a_run.md").read_text(), re.DOTALL)


def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = VISION.run(tmp_path)
    code = re.sub(r'load\("[^"]*"\)', f"load({str(folder)!r})", SNIPPETS[0])
    monkeypatch.chdir(tmp_path)
    exec(code, {"images": torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)})
    assert "test/accuracy" in capsys.readouterr().out
    assert torch.load("weights.pt", weights_only=True)


@pytest.mark.parametrize(("program", "name"), [(DQN, "DQN"), (SAC, "SAC")], ids=["dqn", "sac"])
def test_an_agent_s_actions(program: Program, name: str, tmp_path: Path) -> None:
    networks, action = SNIPPETS[1].splitlines()[:2] if name == "DQN" else SNIPPETS[1].splitlines()[2:]
    assert networks.endswith(f"# {name}")
    trained = harness.load(program.run(tmp_path))
    task = trained.task
    shape = (task.emulator.stack, *task.emulator.frame) if name == "DQN" else (task.observations,)
    names = {"torch": torch, "trained": trained, "observations": torch.zeros(3, *shape)}
    exec(f"{networks}\n{action}", names)
    assert names["action"].shape == ((3,) if name == "DQN" else (3, task.actions))
