"""Tries a release on every Python that it supports, with the newest torch, and on the oldest with the oldest torch.

python scripts/python_versions.py                         3.11 to 3.14 and `oldest`, as far as this machine has them
python scripts/python_versions.py 3.13 oldest             these alone
python scripts/python_versions.py --keep FOLDER           environments stay in FOLDER/NAME and are taken from there

For each: a fresh environment, the wheel with its extra `harness`, the library used from outside of the clone, the
README's first command at its smallest scale and the library's tests (both from the clone), then the sdist in the
wheel's place. `oldest` takes the lower bounds of pyproject.toml (torch 2.9) on the oldest Python here. An interpreter
is looked for on the PATH and among pyenv's; one that is missing is named and skipped. Needs the package index, some
6 GB of disk and a few minutes each. Prints a line for each; the exit status is 1 if one fails or none is there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.oldest_versions import oldest

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
TESTS = ("tests/polar", "tests/reinit", "tests/triggers", "tests/units", "tests/methods")
NEEDED = ("pytest>=8.4,<10", "pytest-xdist>=3.6,<4", "hypothesis>=6.100,<7")
USE = (
    "import sys, fire_core, torch; fire_core.fire_(torch.nn.Linear(3, 3), 'exact'); "
    "assert fire_core.__file__.startswith(sys.prefix), fire_core.__file__"
)


def interpreter(version: str) -> str | None:
    """A Python of this version that starts, from the PATH or pyenv (whose commands of the PATH may be empty shells)."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")), reverse=True)]
    shown = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    for python in filter(None, found):
        done = subprocess.run([python, *shown], check=False, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return python
    return None


def attempt(python: str, dist: Path, folder: Path, pins: list[str]) -> str:
    """What became of one interpreter, in words.

    Args:
        python: the interpreter.
        dist: holds the wheel and the sdist.
        folder: for the environment, or where it is.
        pins: versions that packages must have.
    """
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    inside = str(folder / "bin" / "python")
    pip = [inside, "-m", "pip", "install", "--quiet"]
    (dist / "pins.txt").write_text("\n".join(pins))
    new = ["--no-deps", "--force-reinstall"]
    with tempfile.TemporaryDirectory() as outside:
        steps: list[tuple[str, str | Path, list[str]]] = [
            ("an environment", ROOT, [python, "-m", "venv", str(folder.resolve())]),
            ("the wheel", ROOT, [*pip, "-c", str(dist / "pins.txt"), f"{wheel}[harness]", *NEEDED]),
            ("the wheel", ROOT, [*pip, *new, str(wheel)]),
            ("using the wheel", outside, [inside, "-c", USE]),
            ("command one", ROOT, [inside, "-m", "vision.train", "method=base,fire", "scale=smoke", "tracker=none",
                                   "-m", f"paths.runs={outside}/runs"]),
            ("tests", ROOT, [inside, "-m", "pytest", "-q", "-W", "ignore::DeprecationWarning", *TESTS]),
            ("the sdist", ROOT, [*pip, *new, str(sdist)]),
            ("using the sdist", outside, [inside, "-c", USE]),
        ]  # fmt: skip
        alone = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        for what, where, command in steps:
            done = subprocess.run(command, cwd=where, env=alone, check=False, capture_output=True, text=True)
            if done.returncode:
                return f"{what} failed: {' '.join((done.stdout + done.stderr).split())[-400:]}"
    shown = "import platform, torch; print(platform.python_version(), 'with torch', torch.__version__)"
    return subprocess.run([inside, "-c", shown], check=True, capture_output=True, text=True).stdout.strip() + ": works"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"{', '.join(SUPPORTED)} or oldest (default: all, from PATH or pyenv)")
    parser.add_argument("--keep", type=Path, help="folder in which environments stay (default: they are removed)")
    options = parser.parse_args()
    if wrong := set(options.names) - {*SUPPORTED, "oldest"}:
        parser.error(f"{', '.join(sorted(wrong))}: accepted are {', '.join(SUPPORTED)}, oldest")
    here = {version: interpreter(version) for version in SUPPORTED}
    first = next(filter(None, here.values()), None)
    pins = oldest(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    tried, failed = 0, False
    with tempfile.TemporaryDirectory() as temporary:
        dist = Path(temporary) / "dist"
        dist.mkdir()
        make = f"from setuptools import build_meta as b; b.build_wheel({str(dist)!r}); b.build_sdist({str(dist)!r})"
        builder = str(Path(temporary) / "builder" / "bin" / "python")  # setuptools need not be where this runs
        subprocess.run([first or sys.executable, "-m", "venv", f"{temporary}/builder"], check=True)
        subprocess.run([builder, "-m", "pip", "install", "--quiet", "setuptools>=77.0.3"], check=True)
        subprocess.run([builder, "-c", make], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for name in options.names or (*SUPPORTED, "oldest"):
            python = first if name == "oldest" else here[name]
            if python is None:
                print(f"{name}: skipped, this machine has no such Python", flush=True)
                continue
            folder = (options.keep or Path(temporary)).resolve() / name
            outcome = attempt(python, dist, folder, pins if name == "oldest" else [])
            if options.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
            print(f"{name}: {outcome}", flush=True)
            tried, failed = tried + 1, failed or not outcome.endswith("works")
    return int(failed or not tried)


if __name__ == "__main__":
    sys.exit(main())
