"""What docs/extend.md says, done as it says: a method, a model, data, a stream, a trigger, a tracker of one's own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import rows, start_here
from tests.zygote import ROOT, Zygote

OWN = (
    *("method=halve", "model=wide", "dataset=rings", "benchmark=mirrored"),
    *("trigger=high_loss", "tracker=lines", "--config-dir=conf"),
)
TEXT = (ROOT / "docs/extend.md").read_text()
# A second method, which acts after each step: its class, its yaml.
AFTER_STEP = {
    "fire_core/methods/shrink_step.py": '''"""Shrink all weights a little after each step."""

import torch

from fire_core.methods import Context, Method, Net
from fire_core.ranges import Share, checked


class ShrinkStep(Method):
    """All weights times 1 - `rate` after each step."""

    @checked
    def __init__(self, rate: Share = 1e-4) -> None:
        self.rate = rate

    def after_step(self, net: Net, context: Context) -> None:
        with torch.no_grad():
            for parameter in net.parameters(context.spared):
                parameter.mul_(1 - self.rate)
''',
    "conf/method/shrink_step.yaml": """\
_target_: fire_core.methods.shrink_step.ShrinkStep
name: shrink_step
rate: 1e-4   # of each weight
""",
}
ROOMS = ("conf", "fire_core", "harness", "vision", "language", "rl", "analysis", "hydra_plugins", "tests", "docs")
# Tests that go over all methods or over all of conf/, and those of what was added.
OVER_ALL = [
    "tests/added.py",
    "tests/methods/test_halve.py",
    *(  # of this test each method is a case, and those that were there are run in the clone itself
        f"tests/methods/test_options_matter.py::test_every_number_has_an_effect_and_a_resume_has_none[{method}]"
        for method in ("halve", "shrink_step")
    ),
    "tests/options/test_options.py",
    "tests/harness/tune/test_space.py",
    "tests/test_configs.py::test_what_conf_holds_is_ordinary",
    "tests/test_import_direction.py::test_no_import_against_the_direction",
    "tests/test_readme.py::test_there_are_as_many_methods_as_are_counted",
]


def shown_files() -> dict[str, str]:
    """The files that the page shows, by their paths in a clone."""
    shown = re.findall(r"`([\w/]+\.(?:py|yaml))`[^`\n]*(?:`[^`\n]*`[^`\n]*)*:\n\n```\w+\n(.*?)```", TEXT, re.DOTALL)
    files = dict(shown)
    assert len(files) == len(shown) == 13, "six modules, their yaml files, a test"
    return files


def test_what_is_shown_is_added_beside_one_s_own_modules_and_runs(tmp_path: Path, zygote: Zygote) -> None:
    assert " ".join(OWN) in re.sub(r" \\\n +", " ", TEXT)
    shown = {Path(path): text for path, text in shown_files().items() if not path.startswith("tests/")}
    modules = [path for path in shown if path.suffix == ".py"]
    for path, text in shown.items():
        for module in modules:
            text = text.replace(f"_target_: {'.'.join(module.with_suffix('').parts)}.", f"_target_: {module.stem}.")
        place = tmp_path / (path.name if path in modules else path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    answer = zygote.run(tmp_path, "vision.train", *OWN, "epochs=1", "progress=false")
    assert answer.code == 0, answer.err
    (folder,) = (tmp_path / "runs" / "vision").glob("mirrored-rings-halve-s0-*")
    assert (folder / "DONE").exists()
    logged = rows(folder)
    assert (folder / "lines.txt").read_text().count("\n") == len(logged)
    assert [row["reason"] for row in logged if row.get("kind") == "firing"][:1] == ["loss above 0.5"]
    assert {row["phase"] for row in logged} == set(range(6))


def test_one_s_own_methods_stand_in_the_help_and_in_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf/method").mkdir(parents=True)
    (tmp_path / "own_halve.py").write_text(shown_files()["fire_core/methods/halve.py"])
    (tmp_path / "conf/method/halve.yaml").write_text("_target_: own_halve.Halve\nname: halve\nfactor: 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    chain = ("method=chain", "method.of=halve+l2init", "method.parts.halve.factor=0.25", "--config-dir=conf")
    assert start_here("vision", (*chain, "--help"), monkeypatch) == 0
    shown = capsys.readouterr().out
    assert " fuse, halve, " in " ".join(shown.split())
    assert "factor: 0.25" in shown
    small = ("scale=smoke", "benchmark.tasks=2", "benchmark.samples=64", "model.hidden=8", "tracker=none")
    assert start_here("vision", (*chain, *small, "progress=false"), monkeypatch) == 0


def test_in_a_clone_new_files_are_enough(tmp_path: Path) -> None:
    """Class, yaml and test; no file that was there changes, and what lists methods, options and choices holds."""
    for room in ROOMS:
        leave_out = shutil.ignore_patterns("__pycache__", "*.csv", "*.runs.json", "*.png", "originals", "golden")
        shutil.copytree(ROOT / room, tmp_path / room, ignore=leave_out)
    for file in ("README.md", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    for file, text in (shown_files() | AFTER_STEP).items():
        assert not (tmp_path / file).exists(), file
        (tmp_path / file).write_text(text)
    test = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *OVER_ALL]
    answer = subprocess.run(test, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout[-4000:]


def environment(root: Path) -> dict[str, str]:
    """That of this process, with the copy on Python's path and a session of tests of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return kept | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
