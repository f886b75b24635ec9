"""Nothing leaves its folders by accident, nothing in a config is code, and dependencies are bounded."""

import re
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.config.errors import ConfigError
from harness.run.identity import check_name
from tests.zygote import ROOT, Zygote


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "/etc", "", ".hidden", "a b", "a\nb", "$(x)", "a\\b", "..\\x"])
def test_names_that_could_lead_elsewhere(name: str) -> None:
    with pytest.raises(ConfigError, match="goes into a path"):
        check_name("method.name", name)


def test_the_program_refuses_them(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path / "in", "vision.train", "tracker=none", "dataset.name=../../out")
    assert answer.code == 2
    assert answer.err.startswith("error: dataset.name='../../out' goes into a path")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"], "nothing was written"


def test_configs_hold_no_code(tmp_path: Path, zygote: Zygote) -> None:
    assert not OmegaConf.has_resolver("eval")
    for file in (ROOT / "conf").rglob("*.yaml"):
        text = file.read_text()
        assert not re.search(r"\$\{(eval|python|oc\.env|py)[:.]", text), file
        assert "!!python" not in text
    answer = zygote.run(tmp_path, "vision.train", "lr=${eval:1+1}")
    assert answer.code == 2
    assert "eval" in answer.err


def test_no_source_reads_what_can_run_code() -> None:
    hostile = re.compile(
        r"weights_only=False|allow_pickle=True|pickle\.loads?\(|(Unsafe|Full|yaml\.)Loader|yaml\.(unsafe|full)_load|[^.\w]eval\(|exec\("
    )
    for room in ("fire_core", "harness", "vision", "language", "rl", "analysis", "scripts"):
        for file in (ROOT / room).rglob("*.py"):
            if (
                "originals" in file.parts or file.name == "record_originals.py"
            ):  # run the public code of others on purpose
                continue
            found = hostile.search(file.read_text())
            assert not found, f"{file}: {found[0] if found else ''}"


def test_dependencies_are_bounded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for needed in (*project["dependencies"], *project["optional-dependencies"]["cluster"]):
        assert ">=" in needed, needed
        assert "<" in needed, needed
