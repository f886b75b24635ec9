"""The environment of a process: versions, git commit and hardware."""

import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

# The packages that a run's numbers may depend on: through data, environments, models or options.
PACKAGES = (
    "torch", "torchvision", "numpy", "hydra-core", "gymnasium", "ale-py", "wandb", "scikit-learn",
    "mujoco", "dm-control", "minatar", "timm", "pillow", "scipy", "tiktoken", "datasets",
)  # fmt: skip
ROOMS = ("fire_core", "harness", "vision", "language", "rl")  # packages with the code of the runs
GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # by these git takes another repository


def environment() -> dict[str, Any]:
    """Return what `env.json` records: time, command, versions, git commit and hardware of this process."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": ["python", *command()],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "packages": dict(versions()),
        "git": git_commit(),
        "code": code_digest(),
    }


def command() -> list[str]:
    """Return the words of the command that started this process, or in a worker the command of its driver."""
    driver = Path(f"/proc/{os.getppid()}/cmdline")
    if any("multiprocessing" in word or "loky" in word for word in sys.orig_argv) and driver.exists():
        return driver.read_text(errors="replace").split("\0")[1:-1]
    return sys.orig_argv[1:]


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the version of each of `PACKAGES`, as it was when this process first asked; None if there is none."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    """Return the CPU's name, such as `AMD EPYC 7763 64-Core Processor`, as the system reports it."""
    about = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.*)$", about.read_text() if about.exists() else "", re.MULTILINE)
    return name[1] if name else platform.processor()


@functools.cache
def code_digest() -> str:
    """Return a digest of this project's source files, as they were when this process first asked.

    It tells apart two trees that both have uncommitted changes, and two installations that are no checkout.
    """
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for room in ROOMS:
        for file in sorted((root / room).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def git_commit() -> str | None:
    """Return the commit of this code, with `-dirty` when tracked files are changed; None outside a checkout.

    It is the commit of when this process first asked, as `code_digest` is: what is committed later is not the code that
    a process with many runs has imported. Tables and pages below `docs` do not count: a study writes them while it
    runs. A checkout of something else around an installation, such as a project with its `.venv`, does not count, nor
    one that variables of the environment name, as within a hook of git.
    """
    try:
        commit = _git("rev-parse", "HEAD").strip()
        changed = _git(
            "--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)docs"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str:
    """Return what a command of git prints about the repository of this code.

    Raises:
        OSError: there is no git.
        subprocess.SubprocessError: this very file is in no repository, or the command failed.
    """
    of_this_folder = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}

    def run(*command: str) -> str:
        answer = subprocess.run(
            ["git", *command],
            cwd=Path(__file__).parent,
            env=of_this_folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return answer.stdout

    run("ls-files", "--error-unmatch", Path(__file__).name)
    return run(*words)
