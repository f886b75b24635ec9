"""A user's own folder `vision` or `tests` beside this repository's: what docs/programs.md says of it holds."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(folder: Path, *words: str, first: Path = ROOT) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(dict.fromkeys([str(first), str(ROOT)]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_a_program_starts_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "__init__.py").touch()
    assert "No module named vision.train" in python(tmp_path, "-m", "vision.train", "--cfg", "job").stderr
    started = python(tmp_path, "-P", "-m", "vision.train", "--cfg", "job")
    assert started.stdout.startswith("program: vision"), started.stderr


def test_a_project_s_own_tests_are_found_where_its_root_comes_first(tmp_path: Path) -> None:
    (tmp_path / "own" / "tests").mkdir(parents=True)
    (tmp_path / "own" / "tests" / "__init__.py").touch()
    code = "import tests; print(tests.__file__)"
    assert python(tmp_path, "-c", code).stdout.startswith(str(ROOT))
    assert python(tmp_path, "-c", code, first=tmp_path / "own").stdout.startswith(str(tmp_path / "own"))
