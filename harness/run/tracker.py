"""Mirrors of `metrics.jsonl`. A mirror that is slow, absent or broken never stops or slows training."""

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from fire_core.ranges import checked, one_of, within

log = logging.getLogger(__name__)


class Tracker:
    """Mirrors nothing: `tracker=none`, and the interface of all trackers."""

    def start(self, folder: Path, identity: dict[str, Any]) -> None:
        """Note that the run starts, or resumes, in `folder`, and what its identity is."""

    def log(self, row: dict[str, Any]) -> None:
        """Note that a row was written to metrics.jsonl.

        Rows that stand there when the run starts, as after a resume, do not come again. Those after the checkpoint from
        which it resumes do.
        """

    def finish(self) -> None:
        """Note that the process leaves the run; the folder holds `DONE` if the run is finished."""


class Wandb(Tracker):
    """Weights & Biases, offline unless asked otherwise: no account, no prompt, no network.

    A separate process (`harness.run.wandb_mirror`) follows metrics.jsonl, so that training neither waits for wandb nor
    shares an interpreter with it. If it cannot start, dies or hangs, a warning is given and training continues; nothing
    is lost, as the run folder holds everything.

    A run that was killed or has failed is marked as failed there. A resumed run goes on under its id; online, wandb
    then keeps the rows that it has and takes the later ones alone. A run that is trained anew, or in another folder,
    has an id of its own.

    Args:
        mode: offline writes wandb's files into the run folder, online sends them.
        project: wandb project.
        entity: wandb team or user; None: wandb's default.
        patience: seconds to wait at the end for the last rows.
    """

    @checked
    def __init__(
        self,
        mode: Annotated[str, one_of("offline", "online")] = "offline",
        project: str = "fire",
        entity: str | None = None,
        patience: Annotated[float, within(0, 1_000_000)] = 30.0,
    ) -> None:
        self.mode, self.project, self.entity, self.patience = mode, project, entity, patience
        self._process: subprocess.Popen[str] | None = None

    def start(self, folder: Path, identity: dict[str, Any]) -> None:
        try:
            request = {
                "folder": str(folder.absolute()),
                "id": wandb_id(folder),
                "config": identity,
                "mode": self.mode,
                "project": self.project,
                "entity": self.entity,
            }
            self._process = subprocess.Popen(
                # Started by its path: `-m` would import the package, and so torch, which takes three times as long.
                [sys.executable, "-P", str(Path(__file__).with_name("wandb_mirror.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C reaches training alone, which then stops the mirror
            )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            self._give_up(str(error))

    def log(self, row: dict[str, Any]) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._give_up()

    def finish(self) -> None:
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=self.patience)  # closes its input: it mirrors the last rows and exits
        except subprocess.TimeoutExpired:
            self._give_up(f"no answer within {self.patience:g} s")
        else:
            if self._process.returncode:
                self._give_up()
        self._process = None

    def _give_up(self, why: str = "") -> None:
        """Log a warning with the reason, and end the mirror's process and its children."""
        if self._process is not None:
            for child in _children(self._process.pid):
                os.kill(child, signal.SIGKILL)
            self._process.kill()
            message = self._process.communicate()[0].strip()  # its error message, if any
            why = why or message or f"its process ended with code {self._process.returncode}"
        log.warning("wandb stopped (%s): training continues, metrics.jsonl is complete", why)
        self._process = None


def wandb_id(folder: Path) -> str:
    """Return the id of a run in wandb, which its folder keeps; a folder without rows gets a new one.

    Raises:
        OSError: the id cannot be written.
    """
    metrics, file = folder / "metrics.jsonl", folder / "wandb" / "id"
    if not metrics.exists() or not metrics.stat().st_size:
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{folder.name[-55:]}-{secrets.token_hex(4)}")
    return file.read_text() if file.exists() else folder.name[-64:]  # as before there was such a file


def _children(process: int) -> list[int]:
    """Return the ids of a process's children, on Linux: wandb's service, which may be what hangs."""
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
