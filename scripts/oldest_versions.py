"""Tests the lower bounds of all dependencies: an environment with the oldest versions that pyproject.toml accepts.

python scripts/oldest_versions.py --list                      the pins, nothing is installed
python scripts/oldest_versions.py                             a temporary environment, the tests below
python scripts/oldest_versions.py --venv FOLDER tests/polar   an environment to keep, other tests

Every dependency of the base and of all extras is pinned to its lower bound, but linters and type stubs; what these
bring themselves is as new as they allow. Needs the package index and some 6 GB of disk.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATIC = (
    "ruff",
    "mkdocs-material",
    "mkdocstrings",
    "mypy",
    "pandas-stubs",
    "types-tqdm",
    "types-PyYAML",
)  # `.ci/run` uses the newest ones
# Where code meets a dependency. Not tests/zoo, which compares with the newest sources of transformers and timm.
TESTS = (
    "tests/polar", "tests/reinit", "tests/weights", "tests/units", "tests/methods", "tests/analysis",
    "tests/tools/test_audit.py", "tests/tools/test_checkpoint.py", "tests/tools/test_project.py", "tests/vision",
    "tests/language/test_model.py", "tests/language/test_data.py", "tests/rl", "tests/test_configs.py",
    "tests/test_metrics.py", "tests/harness/config", "tests/harness/run/test_launchers.py",
)  # fmt: skip


def oldest(project: dict[str, object]) -> list[str]:
    """Each dependency of a `[project]` table and its extras, pinned to its lower bound.

    Raises:
        ValueError: one has no lower bound, or two that differ.
    """
    extras = project.get("optional-dependencies", {})
    assert isinstance(extras, dict)
    listed = [project.get("dependencies", []), *extras.values()]
    pins: dict[str, str] = {}
    for requirement in dict.fromkeys(line for group in listed for line in group):
        name = re.match(r"[\w.-]+", requirement).group()  # type: ignore[union-attr]
        if name == project["name"] or name in STATIC:  # the first: another extra
            continue
        bound = re.search(r">=\s*([\d.]+)", requirement)
        if bound is None or pins.get(name, bound.group(1)) != bound.group(1):
            raise ValueError(f"{requirement}: needs one lower bound, the same in all extras")
        pins[name] = bound.group(1)
    return [f"{name}=={version}" for name, version in pins.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the pins and stop")
    parser.add_argument("--venv", type=Path, help="where the environment is made, or taken from (default: temporary)")
    parser.add_argument("tests", nargs="*", default=TESTS, help="for pytest (default: those that meet a dependency)")
    options = parser.parse_args()
    pins = oldest(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    if options.list:
        print("\n".join(pins))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.venv or Path(temporary) / "venv"
        if not (folder / "bin" / "python").exists():
            venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-e", str(ROOT)], check=True)
        # Old releases warn of what newer ones of their own dependencies will drop.
        tests = [python, "-m", "pytest", "-q", "-W", "ignore::DeprecationWarning", *options.tests]
        return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
