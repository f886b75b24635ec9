"""The commands of the README and of the presets of streams, as they stand there, at their smallest scale."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.programs import compose
from tests.zygote import ROOT, Zygote

README = (ROOT / "README.md").read_text()
SMALLEST = ("scale=smoke", "tracker=none", "progress=false", "benchmark.samples=64")


def test_the_first_command_trains_and_draws(
    tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ((install, *lines),) = re.findall(
        r"^(pip install .*) && (python -m vision\.train .*) && (python .*)$", README, re.MULTILINE
    )
    assert install == 'pip install -e ".[harness]"'
    train, draw = map(shlex.split, lines)
    assert train[:3] == ["python", "-m", "vision.train"]
    answer = zygote.run(tmp_path, "vision.train", *train[3:-1], *SMALLEST, train[-1])
    assert answer.code == 0, answer.err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", draw[1:])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / draw[1]), run_name="__main__")
    assert ended.value.code == 0
    assert (tmp_path / "figures" / "random_labels-digits-mlp.png").exists()
    assert re.search(r"^Base .*\n^FIRE ", capsys.readouterr().out, re.MULTILINE)


def test_the_loop_runs_and_acts(capsys: pytest.CaptureFixture[str]) -> None:
    """The README's own loop, on a model whose loss stays where it is."""
    once, code, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

    def make_model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    model = make_model()
    batch = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    names = {"model": model, "optimizer": optimizer, "criterion": torch.nn.CrossEntropyLoss(), "loader": [batch] * 1200}
    exec(once.replace("500", "5") + code, names | {"make_model": make_model, "next_task": [batch] * 3})
    weight = model[0].weight.double()
    reached = torch.linalg.svdvals(weight)
    assert torch.allclose(reached, torch.full_like(reached, 2**0.5), atol=0.05), "sqrt(8 / 4)"
    printed = capsys.readouterr().out
    assert "plasticity" in printed
    assert "0.weight" in printed


def test_the_tools_for_muon_run(capsys: pytest.CaptureFixture[str]) -> None:
    *_, code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    names = {"torch": torch, "model": model}
    exec(code, names)
    muon, adam = names["optimizers"]
    held = [sum(len(group["params"]) for group in optimizer.param_groups) for optimizer in (muon, adam)]
    assert held == [1, 5], "the hidden matrix; the layers at both ends, and all biases"
    assert "2.weight" in capsys.readouterr().out


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the commits are in the repository's history")
def test_the_log_names_commits_that_can_be_brought_back() -> None:
    named = {*re.findall(r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7}\b", (ROOT / "docs/log.md").read_text())}
    commits = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert named <= {commit[:7] for commit in commits}
    assert len(named) > 2


CONTROLS = {"fresh", "full_reset", "optimizer_reset", "random_isometry", "weight_decay"}
NO_METHODS = {"base", "chain", "fire", "fire_exact", "fire_half"}


def test_there_are_as_many_methods_as_are_counted() -> None:
    """FIRE once, however it is computed; controls are no rivals."""
    names = {path.stem for path in (ROOT / "conf/method").glob("*.yaml")}
    assert names >= CONTROLS | NO_METHODS
    rivals = len(names - CONTROLS - NO_METHODS)
    counted = re.search(r"FIRE, more than (\d+) rivals \([^)]*\), (\d+) controls", README)
    assert counted is not None
    assert int(counted[1]) < rivals
    assert int(counted[2]) == len(CONTROLS)


def commands(text: str) -> list[list[str]]:
    """The options of each command of vision that a text shows, with the first of several values."""
    found = re.findall(r"python -m vision\.train ((?:[^\s`#&]+=[^\s`#&]+ ?)+)", re.sub(r"\\\n#? *", "", text))
    return [[re.sub(r"=([^\[,]*),.*", r"=\1", option) for option in shlex.split(line)] for line in found]


@pytest.mark.parametrize("files", ["README.md", "conf/experiment/plasticity_*.yaml"])
def test_commands_compose(files: str) -> None:
    shown = commands("\n".join(path.read_text() for path in ROOT.glob(files)))
    assert shown
    for options in shown:
        config = compose("vision", *options)
        assert config.program == "vision"
