"""What a user installs: the wheel holds the library alone, needs torch alone, and its types are seen from outside."""

import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import torch

import fire_core
from tests.test_import_direction import ROOT

INTEGRATIONS = {"lightning", "transformers", "stable-baselines3", "torchrl"}

USER = """
import torch
from fire_core import Report, dfi, fire_, reset_optimizer_state, resolve

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.Adam(model.parameters())
report: Report = fire_(model, solver="exact", layout={"linear": "project"}, optimizer=optimizer)
names: list[str] = [row.name for row in report.rows]
shape: tuple[int, int] = resolve(model)[0].shape
deviation: torch.Tensor = dfi(torch.eye(3))
count: int = reset_optimizer_state(optimizer, model.parameters())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the sources, built offline."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/golden", "docs")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder / "source")], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel, and torch as it is installed here."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))
    return folder / "bin" / "python"


def test_the_wheel_holds_the_library_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"fire_core"}
    assert "fire_core/py.typed" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "fire_core").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


def test_it_needs_torch_alone(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    about = message_from_bytes(archive.read(name))
    assert [line for line in about.get_all("Requires-Dist", []) if "extra ==" not in line] == ["torch<3,>=2.9"]
    assert about["Version"] == fire_core.__version__
    assert {
        "harness",
        "language",
        "timm",
        "dmc",
        "minatar",
        "video",
        "cluster",
        "zoo",
        "docs",
        "dev",
        *INTEGRATIONS,
    } == set(about.get_all("Provides-Extra", []))


COMMAND = """
import sys
import fire_core
from fire_core.tools.fire import main

print(fire_core.__file__, report, "tables:", sep="\\n")
print(*(main(["matrices", target]) for target in sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_installed_library_and_its_command_run(python: Path, tmp_path: Path) -> None:
    torch.save(torch.nn.LSTM(6, 5).state_dict(), tmp_path / "lstm.pt")
    command = [python, "-c", USER + COMMAND, "torch.nn:Identity", "lstm.pt"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(python.parents[1])), "the wheel's, not the clone's"
    *tables, codes = done.stdout.split("tables:\n")[1].splitlines()
    assert (len(tables), codes) == (1 + 4, "0 0")
    (about,) = (python.parents[1]).glob("lib/python*/site-packages/fire_plasticity-*.dist-info")
    assert "[console_scripts]\nfire = fire_core.tools.fire:main" in (about / "entry_points.txt").read_text()


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {fire_core.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    sections = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    newest = next(section for section in sections if not section.startswith("## Unreleased"))
    assert newest.startswith(f"## {fire_core.__version__}, ")
