"""Wrong values for every option of every program: it works, or one line with exit code 2 and nothing written.

Swept in full: the own options and all groups of vision, language, dqn and sac, but the networks of timm and torchvision
and, where their packages are absent, the environments of dmc and HumanoidBench.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.options.sweep import VALUES, Case, cases, ready, tried

SHORT = 6  # by default each option gets every sixth value, another first one each


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with ready(monkeypatch):
        yield tmp_path


def problems(chosen: list[tuple[Case, str]], folder: Path, data: Path) -> list[str]:
    return [wrong for case, text in chosen if (wrong := tried(case, text, folder, data))]


def test_options_of_vision_refuse_or_work(folder: Path, data: Path) -> None:
    some = [case for case in cases() if case.program.name == "vision" and case.overrides[0].startswith("tracker=")]
    chosen = [(case, text) for i, case in enumerate(some) for text in VALUES[i % SHORT :: SHORT]]
    assert problems(chosen, folder, data) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", ["vision", "language", "dqn", "sac"])
def test_every_option_refuses_or_works(program: str, folder: Path, data: Path) -> None:
    chosen = [(case, text) for case in cases() if case.program.name == program for text in VALUES]
    assert problems(chosen, folder, data) == []
