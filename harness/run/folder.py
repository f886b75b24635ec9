"""A run folder: identity, measurements and state of a run.

<runs>/<program>/<readable name>-<hash of the config>/
    config.yaml      the resolved configuration
    identity.json    the part of it that shapes the numbers: what the run is, and how it is executed
    env.json         versions, git commit, hardware
    metrics.jsonl    one JSON object a line, `step` strictly increasing: which trackers mirror. Before the rows
                     of a phase that a method acted before, a row {"kind": "boundary"} at the step of the row before it;
                     where a trigger fired, a row {"kind": "firing"}, after the row of the same step if there is one
    checkpoints/     the newest two; of a finished run the last
    DONE             a JSON summary, written last
    FAILED           or one line that says why training stopped; gone when the run is started again
"""

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock, Timeout

from harness.config.errors import ConfigError, TrainingError
from harness.run import checkpoint
from harness.run.environment import environment
from harness.run.identity import described
from harness.run.tracker import Tracker

log = logging.getLogger(__name__)


class Run:
    """One run and its folder, locked against a second process while it is open.

    Args:
        folder: the run's folder; its name is made by the caller from the config's hash.
        identity: the part of the config that shapes the numbers (see `harness.run.identity`).
        config_yaml: the whole resolved config, for the reader.
        tracker: mirrors rows; None mirrors nothing.
        every_seconds: how often `checkpoint_due` is true.
        keep: checkpoints kept.
        wait: wait for another process that holds the run instead of raising.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        config_yaml: str,
        tracker: Tracker | None = None,
        every_seconds: float = 60.0,
        keep: int = 2,
        wait: bool = False,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.config_yaml = config_yaml
        self.tracker = tracker or Tracker()
        self.every_seconds = every_seconds
        self.keep = keep
        self.wait = wait
        self._lock = FileLock(folder / ".lock")
        self._pending: list[str] = []  # rows that could not be written yet (disk full)
        self._good_bytes = 0  # metrics.jsonl is whole up to here
        self._last_step = -1
        self.next_checkpoint = 0.0  # on the monotonic clock; the loop sets it anew with each attempt

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            if not self.wait:
                raise ConfigError(
                    f"run {self.folder.name} is being trained by another process; wait for it or stop it"
                ) from None
            log.info("waiting for another process, which trains %s", self.folder.name)
            self._lock.acquire()
        except OSError as error:
            raise self._cannot_write(error) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):  # not a signal's SystemExit: such a run is interrupted, not failed
            with contextlib.suppress(OSError):
                (self.folder / "FAILED").write_text(f"{type(error).__name__}: {error}".split("\n")[0] + "\n")
        self.tracker.finish()
        self._lock.release()

    def _cannot_write(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write to {self.folder}: {error.strerror or error} (see paths.runs=)")

    # ---- where the run stands

    @property
    def done(self) -> dict[str, Any] | None:
        """The summary of a finished run; None if it is not finished."""
        try:
            summary: dict[str, Any] = json.loads((self.folder / "DONE").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return summary

    def resume(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The state to resume from (None at the start); rows written after it are cut off, to be written again."""
        state = self.newest_state(device)
        self._pending.clear()
        self._good_bytes = state["metrics_bytes"] if state else 0
        self._last_step = state["last_row_step"] if state else -1
        about = environment()
        try:
            checkpoint.remove_leftovers(self.folder)
            with open(self.folder / "metrics.jsonl", "ab") as metrics:
                metrics.truncate(self._good_bytes)
            checkpoint.write_atomically(self.folder / "config.yaml", self.config_yaml.encode())
            content = json.dumps(described(self.identity), indent=1)
            checkpoint.write_atomically(self.folder / "identity.json", content.encode())
            checkpoint.write_atomically(self.folder / "env.json", json.dumps(about, indent=2).encode())
            for mark in ("FAILED", "DONE"):
                (self.folder / mark).unlink(missing_ok=True)
        except OSError as error:
            raise self._cannot_write(error) from None
        self.tracker.start(self.folder, self.identity)
        self.next_checkpoint = time.monotonic() + self.every_seconds
        return state["trainer"] if state else None

    def newest_state(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The content of the newest checkpoint that is whole and fits the run and its rows."""
        return checkpoint.load_newest(self.folder / "checkpoints", self.identity, device, self._check_rows)

    def _check_rows(self, state: dict[str, Any]) -> None:
        """Raise a ValueError for a checkpoint whose rows are not all in metrics.jsonl."""
        path, size = self.folder / "metrics.jsonl", state["metrics_bytes"]
        rows = path.read_bytes()[:size] if path.exists() else b""
        if len(rows) < size or not rows.endswith(b"\n" if size else b""):
            raise ValueError("metrics.jsonl lacks rows that it was written with")

    # ---- what it measures

    def log(self, row: dict[str, Any]) -> None:
        """Append one row; `row["step"]` must be larger than in the row before, or the same in a row with a `kind`.

        A full disk does not stop the run: rows wait in memory until they can be written.
        """
        if row["step"] < self._last_step + ("kind" not in row):
            raise ValueError(f"step {row['step']} after step {self._last_step}: rows must go forward")
        self._last_step = row["step"]
        self._pending.append(json.dumps(row) + "\n")
        self._write_pending()
        self.tracker.log(row)

    def append_rows(self, text: str) -> None:
        """Append the rows of another folder (a shared first phase's)."""
        self._pending.append(text)
        self._last_step = json.loads(text.rstrip("\n").rsplit("\n", 1)[-1])["step"] if text else -1
        self._write_pending()
        for line in text.splitlines():
            self.tracker.log(json.loads(line))

    def _write_pending(self, sync: bool = False) -> bool:
        """Append the rows that wait; whether all rows are in the file (with `sync`: on the disk) now."""
        data, path = "".join(self._pending).encode(), self.folder / "metrics.jsonl"
        try:
            with open(path, "ab", buffering=0) as file:
                if file.tell() != self._good_bytes:
                    raise OSError("someone else changed or removed it")
                if file.write(data) != len(data):
                    file.truncate(self._good_bytes)  # no partial line may stay
                    raise OSError("only a part fitted")
                self._good_bytes += len(data)
                self._pending.clear()
                if sync:
                    os.fsync(file.fileno())
            return True
        except OSError as error:
            log.warning("cannot write %s (%s): rows wait in memory", path, error.strerror or error)
            return False

    # ---- what it keeps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next checkpoint's time has come."""
        return time.monotonic() >= self.next_checkpoint

    def checkpoint(self, step: int, trainer: dict[str, Any]) -> None:
        """Write a checkpoint, with all rows so far.

        Raises:
            OSError: there is no room for it; earlier checkpoints are as they were.
        """
        if not self._write_pending(sync=True):
            raise OSError(f"the rows cannot be written in {self.folder}")
        state = {"trainer": trainer, "metrics_bytes": self._good_bytes, "last_row_step": self._last_step}
        try:
            checkpoint.save(self.folder / "checkpoints", step, state, self.identity, self.keep)
        except RuntimeError as error:  # torch.save reports a failed write as one
            raise OSError(str(error).split("\n")[0]) from error

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as done; of its checkpoints the last stays.

        Raises:
            TrainingError: the last rows or the mark could not be written; started again, the run resumes from its last
                checkpoint.
        """
        try:
            if not self._write_pending(sync=True):
                raise OSError("the last rows could not be written")
            checkpoint.write_atomically(self.folder / "DONE", (json.dumps(summary) + "\n").encode())
            checkpoint.remove_old(self.folder / "checkpoints", keep=1)
        except OSError as error:
            raise TrainingError(
                f"cannot finish {self.folder} ({error.strerror or error}): make room and start the same command again"
            ) from error
