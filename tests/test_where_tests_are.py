"""Each source file has a test: by the mirror of the tree, or by the table of tests/README.md."""

import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    "analysis",
    "examples",
    "fire_core",
    "harness",
    "hydra_plugins",
    "language",
    "rl",
    "scripts",
    "studies",
    "vision",
)


def table() -> dict[str, list[Path]]:
    """The rows of tests/README.md: a source file, or a pattern for several, and its tests."""
    rows: dict[str, list[Path]] = {}
    for line in (ROOT / "tests" / "README.md").read_text().splitlines():
        if line.startswith("| `"):
            sources, tests = line.strip("|").split("|")
            for source in re.findall("`(.+?)`", sources):
                rows[source] = [ROOT / "tests" / name for name in re.findall("`(.+?)`", tests)]
    return rows


def sources() -> list[str]:
    """All files with code; `__init__.py` of a folder holds one only in a plugin of Hydra's."""
    listed = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if name.endswith(".py") and (ROOT / name).is_file()]
    return [name for name in files if not name.endswith("__init__.py") or name.startswith("hydra_plugins")]


def mirrored(source: str) -> Path:
    """Where the test of a file is by its name."""
    path = Path(source.removeprefix("fire_core/"))
    return ROOT / "tests" / path.parent / f"test_{path.name}"


def row_of(source: str) -> str | None:
    """The first row of the table that fits a file."""
    return next((row for row in table() if fnmatchcase(source, row)), None)


def test_each_file_has_a_test() -> None:
    untold = [name for name in sources() if not mirrored(name).exists() and row_of(name) is None]
    assert untold == [], "tests/README.md has to name the tests of these files"


def test_the_table_names_what_is_there_and_nothing_twice() -> None:
    missing = {str(test) for tests in table().values() for test in tests if not test.is_file()}
    assert not missing
    used = {row_of(name) for name in sources() if not mirrored(name).exists()}
    assert set(table()) == used - {None}, "a row whose files have tests by the mirror, or are gone"
