"""The commands of the README and of the presets of streams, as they stand there, at their smallest scale."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import compose
from tests.zygote import ROOT, Zygote

README = (ROOT / "README.md").read_text()
SMALLEST = ("scale=smoke", "tracker=none", "progress=false", "benchmark.samples=64")


def test_the_first_command_trains_and_draws(tmp_path: Path, zygote: Zygote) -> None:
    (line,) = re.findall(r"^pip install .* && (python -m vision\.train .*)$", README, re.MULTILINE)
    train, draw = (shlex.split(command) for command in line.split("&&"))
    assert train[:3] == ["python", "-m", "vision.train"]
    answer = zygote.run(tmp_path, "vision.train", *train[3:-1], *SMALLEST, train[-1])
    assert answer.code == 0, answer.err
    figures = subprocess.run(
        [sys.executable, ROOT / draw[1], *draw[2:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert figures.returncode == 0, figures.stderr
    assert (tmp_path / "figures" / "random_labels-digits-mlp.png").exists()
    assert re.search(r"^Base .*\n^FIRE ", figures.stdout, re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The options of each command of vision that a text shows, with the first of several values."""
    found = re.findall(r"python -m vision\.train ((?:[^\s`#&]+=[^\s`#&]+ ?)+)", re.sub(r"\\\n#? *", "", text))
    return [[re.sub(r"=([^\[,]*),.*", r"=\1", option) for option in shlex.split(line)] for line in found]


@pytest.mark.parametrize("file", ["README.md", "conf/presets/plasticity.yaml"])
def test_commands_compose(file: str) -> None:
    shown = commands((ROOT / file).read_text())
    assert shown
    for options in shown:
        config = compose("vision", *options)
        assert config.program == "vision"
