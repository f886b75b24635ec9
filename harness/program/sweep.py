"""The folder in which the jobs of a sweep write how they ended, and the table that is printed of it."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.process.console import Stderr
from harness.process.signals import exit_on_signals
from harness.program.messages import one_line
from harness.program.outcome import DRIVER, Outcome
from harness.run.lock import SWEEP_LOG, Owner

OWNER = "owner"  # name of the file in the sweep's folder that names the driver
ABANDONED_AFTER = 24 * 3600  # seconds after which the folder of a sweep without such a file is removed


class SweepTable(Callback):
    """Hydra's callback that gives a sweep a folder where its jobs, on any machine, write how they ended.

    It is named in conf/hydra/default.yaml.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the folder and pass its name to the jobs in the environment."""
        with contextlib.suppress(OSError, OmegaConfBaseException):  # Hydra meets the same error and reports it
            folder = Path(config.hydra.sweep.dir).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            _remove_folders_of_killed_sweeps(folder)
            os.environ[SWEEP_LOG] = tempfile.mkdtemp(dir=folder)
            os.environ[DRIVER] = Owner.of(os.getpid()).text()
            (Path(os.environ[SWEEP_LOG]) / OWNER).write_text(os.environ[DRIVER])
        exit_on_signals()


def _remove_folders_of_killed_sweeps(parent: Path) -> None:
    """Remove the folders of sweeps whose drivers have ended without removing them.

    An older version wrote no owner into a folder; such a folder is removed a day after its last change. Folders of
    other users, which cannot be read, stay.
    """
    for folder in parent.glob("tmp*"):
        with contextlib.suppress(OSError):
            owner = Owner.read(folder / OWNER)
            is_old = owner is None and time.time() - folder.stat().st_mtime > ABANDONED_AFTER
            if is_old or (owner is not None and owner.is_gone):
                shutil.rmtree(folder)


def take_outcomes() -> list[Outcome] | None:
    """Return how the jobs of a sweep ended, and remove its folder, so a second call returns None as without a sweep."""
    folder = os.environ.pop(SWEEP_LOG, None)
    if folder is None:
        return None
    os.environ.pop(DRIVER, None)
    files = [file for file in Path(folder).glob("*.json") if file.stem.isdecimal()]
    outcomes = list[Outcome]()
    for file in sorted(files, key=lambda path: int(path.stem)):
        try:
            outcomes.append(Outcome(**json.loads(file.read_bytes())))
        except (OSError, ValueError, TypeError) as error:
            outcomes.append(Outcome(f"job {file.stem}", "unknown", f"{file.name} cannot be read ({one_line(error)})"))
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # a sweep in which no job began leaves no files
        if all(outcome.state == "failed" for outcome in outcomes):
            (Path(folder).parent / "multirun.yaml").unlink(missing_ok=True)
        for parent in Path(folder).parents[:2]:
            parent.rmdir()
    return outcomes


def show_table(outcomes: list[Outcome]) -> None:
    """Print a line for each job of a sweep if there were several, and empty the list, so that none is printed twice."""
    outcomes += take_outcomes() or []
    if len(outcomes) > 1:
        width = max(len(outcome.run) for outcome in outcomes)
        for outcome in outcomes:
            print(f"{outcome.run:<{width}}  {outcome.state:<8}  {outcome.result}", file=Stderr())
    outcomes.clear()
