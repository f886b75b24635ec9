"""Mirrors of `metrics.jsonl`. A mirror that is slow, absent or broken never stops or slows training."""

import contextlib
import logging
import os
import queue
import threading
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Tracker:
    """Mirrors nothing: `tracker=none`, and the interface of all trackers."""

    def start(self, folder: Path, config: dict[str, Any], resumed: bool) -> None:
        """The run begins (or goes on) in `folder`."""

    def log(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl."""

    def summary(self, summary: dict[str, Any]) -> None:
        """The run is done."""

    def finish(self) -> None:
        """The process leaves the run, done or not."""


class Wandb(Tracker):
    """Weights & Biases, offline unless asked otherwise: no account, no prompt, no network.

    wandb lives in a thread of its own behind a queue. If it cannot start, dies or hangs, a warning is given and
    training goes on; nothing is lost, as the run folder holds everything.

    Args:
        mode: offline or online.
        project: wandb project.
        entity: wandb team or user; None: wandb's default.
        patience: seconds to wait at the end for wandb to take the last rows.
    """

    def __init__(
        self, mode: str = "offline", project: str = "fire", entity: str | None = None, patience: float = 30.0
    ) -> None:
        self.mode, self.project, self.entity, self.patience = mode, project, entity, patience
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._broken = False

    def start(self, folder: Path, config: dict[str, Any], resumed: bool) -> None:
        # The id is the folder's name: a resumed run goes on under the id that it had.
        self._thread = threading.Thread(target=self._work, args=(folder, config), name="wandb", daemon=True)
        self._thread.start()

    def log(self, row: dict[str, Any]) -> None:
        self._put("log", row)

    def summary(self, summary: dict[str, Any]) -> None:
        self._put("summary", summary)

    def finish(self) -> None:
        if self._thread is None:
            return
        self._put("finish", None)
        self._thread.join(self.patience)
        if self._thread.is_alive():
            log.warning("wandb did not answer within %g s: left behind; metrics.jsonl is complete", self.patience)
        self._thread = None

    def _put(self, kind: str, content: Any) -> None:
        if self._thread is not None and not self._broken:
            self._queue.put((kind, content))

    def _work(self, folder: Path, config: dict[str, Any]) -> None:
        try:
            os.environ.setdefault("WANDB_SILENT", "true")
            os.environ.setdefault("WANDB_CONSOLE", "off")
            import wandb

            # A settings object, since keyword names of wandb.init come and go between releases.
            settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                id=folder.name[-64:],
                name=folder.name,
                dir=str(folder),
                config=config,
                mode="online" if self.mode == "online" else "offline",
                resume="allow" if self.mode == "online" else None,
                settings=settings,
            )
            while True:
                kind, content = self._queue.get()
                if kind == "log":
                    run.log(content, step=content["step"])
                elif kind == "summary":
                    run.summary.update({f"final/{key}": value for key, value in content.items()})
                else:
                    run.finish()
                    return
        except BaseException as error:  # wandb raises its own and SystemExit; none of it may reach training
            self._broken = True
            with contextlib.suppress(Exception):
                log.warning("wandb stopped (%s: %s): training goes on", type(error).__name__, _first_line(error))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
