"""Tries a release on every Python that it supports: wheel, sdist, a fresh environment for each, the library's tests.

python scripts/python_versions.py                       every python3.11 to 3.14 that is found on the PATH
python scripts/python_versions.py PYTHON [PYTHON ...]   these interpreters

Each environment takes torch as pip finds it for this Python, and is removed afterwards. Needs the package index, some
6 GB of disk and a few minutes an interpreter. The wheel is installed with its extra `harness`; the README's command
one runs from the sources, at its smallest scale, and so do the library's tests. Prints a line for each interpreter.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
TESTS = ("tests/polar", "tests/reinit", "tests/triggers", "tests/units", "tests/methods")
NEEDED = ("pytest>=8.4,<10", "pytest-xdist>=3.6,<4", "hypothesis>=6.100,<7")


def attempt(python: str, dist: Path, folder: Path) -> str:
    """What became of one interpreter, in words.

    Args:
        python: the interpreter.
        dist: holds the wheel and the sdist.
        folder: for the environment.
    """
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    inside = str(folder / "bin" / "python")
    for what, command in {
        "an environment": [python, "-m", "venv", str(folder)],
        "the wheel": [inside, "-m", "pip", "install", "--quiet", f"{wheel}[harness]", *NEEDED],
        "import": [inside, "-c", "import fire_core, torch; fire_core.fire_(torch.nn.Linear(3, 3), 'exact')"],
        "command one": [inside, "-m", "vision.train", "method=base,fire", "scale=smoke", "tracker=none", "-m",
                        f"paths.runs={folder / 'runs'}"],
        "tests": [inside, "-m", "pytest", "-q", "-W", "ignore::DeprecationWarning", *TESTS],
        "the sdist": [inside, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(sdist)],
    }.items():  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{what} failed: {' '.join((done.stdout + done.stderr).split())[-400:]}"
    shown = "import platform, torch; print(platform.python_version(), 'with torch', torch.__version__)"
    return subprocess.run([inside, "-c", shown], check=True, capture_output=True, text=True).stdout.strip() + ": works"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", nargs="*", help="interpreters (default: those of the PATH that are supported)")
    given = parser.parse_args().python or [found for v in SUPPORTED if (found := shutil.which(f"python{v}"))]
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        dist = Path(temporary) / "dist"
        dist.mkdir()
        make = f"from setuptools import build_meta as b; b.build_wheel({str(dist)!r}); b.build_sdist({str(dist)!r})"
        subprocess.run([sys.executable, "-c", make], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for number, python in enumerate(given):
            outcome = attempt(python, dist, Path(temporary) / str(number))
            shutil.rmtree(Path(temporary) / str(number), ignore_errors=True)
            print(f"{python}: {outcome}", flush=True)
            failed |= not outcome.endswith("works")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
