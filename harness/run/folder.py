"""A run folder: identity, measurements and state of a run.

<runs>/<program>/<readable name>-<hash of the config>/
    config.yaml      the resolved configuration
    identity.json    the part of it that shapes the numbers: what the run is, and how it is executed
    env.json         versions, git commit, hardware
    metrics.jsonl    one JSON object a line, `step` strictly increasing: which trackers mirror. Before the rows
                     of a phase that a method acted before, a row {"kind": "boundary"} at the step of the row before it;
                     where a trigger fired, a row {"kind": "firing"}, after the row of the same step if there is one
    spectra.json     singular values of every weight before and after each boundary
    weights.json     what a projection did to each weight at each boundary, for methods that report it (FIRE)
    checkpoints/     the newest two
    DONE             a JSON summary, written last
    FAILED           or one line that says why training stopped; gone when the run is started again
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from harness.config.errors import ConfigError, TrainingError
from harness.run import PRUNED, checkpoint
from harness.run.environment import environment
from harness.run.identity import described
from harness.run.lock import FolderLock, NoLocks
from harness.run.tracker import Tracker

log = logging.getLogger(__name__)
KEPT_BOUNDARIES = 100  # of a run, whose singular values and rows about single weights are kept

FILES = {
    "metrics.jsonl", "config.yaml", "identity.json", "env.json", "spectra.json", "weights.json", "DONE", "FAILED",
    ".lock",
}  # fmt: skip


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
        total_steps: optimizer steps of the whole run, for `harness.runs`, which shows the progress.
        check: raises an exception for a trainer's state that cannot be one of this run.
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
        total_steps: int | None = None,
        check: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.config_yaml = config_yaml
        self.tracker = tracker or Tracker()
        self.every_seconds = every_seconds
        self.keep = keep
        self.wait = wait
        self.total_steps = total_steps
        self.check = check
        self._lock = FolderLock(folder)
        self._pending: list[str] = []  # rows that could not be written yet (disk full)
        self._good_bytes = 0  # metrics.jsonl is whole up to here
        self._signature = self._sign(b"")  # of the rows up to here
        self._last_step = -1
        self._next_checkpoint = 0.0
        self.removed = False  # once it is closed: whether its folder was removed under way

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check_files()
            self._acquire()
        except OSError as error:
            raise ConfigError(f"cannot write to {self.folder}: {error.strerror or error} (see paths.runs=)") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):  # not a signal's SystemExit: such a run is interrupted, not failed
            self.fail(error)
        self.tracker.finish()
        self.removed = self._lock.lost
        self._lock.release()

    def _check_files(self) -> None:
        """Refuse a folder in which something else stands where the run's files should: a fifo would be waited for."""
        for path in self.folder.iterdir():
            folder = path.name in ("checkpoints", "replay")
            if path.name in FILES | {"checkpoints", "replay"} and (
                path.is_symlink() or not (path.is_dir() if folder else path.is_file())
            ):
                kind = "folder" if folder else "regular file"
                raise ConfigError(f"{path} is no {kind}: remove it, or train elsewhere (paths.runs=)")

    def fail(self, error: Exception) -> None:
        """Leave a line that says why training stopped."""
        with contextlib.suppress(OSError):
            (self.folder / "FAILED").write_text(f"{type(error).__name__}: {error}".split("\n")[0] + "\n")

    def _acquire(self) -> None:
        said = False
        began = time.monotonic()
        try:
            while not self._lock.acquire():
                # `harness.runs` holds a lock for a moment to see whether it is free.
                if not self.wait and time.monotonic() - began > 1:
                    raise ConfigError(
                        f"run {self.folder.name} is being trained by {self._lock.holder}; wait for it or stop it"
                    )
                if self.wait and not said:
                    log.info("waiting for %s, which trains %s", self._lock.holder, self.folder.name)
                    said = True
                time.sleep(0.1)
        except NoLocks as error:
            if self.wait:
                raise
            log.warning("%s has no locks (%s): see to it that no one else trains this run", self.folder, error)

    # ---- where the run stands

    @property
    def done(self) -> dict[str, Any] | None:
        """The summary of a finished run whose weights are there, or were removed on purpose; else None."""
        try:
            summary = json.loads((self.folder / "DONE").read_text())
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(summary, dict):
            return None
        signature = summary.pop("rows_sha256", None)  # runs of older versions have none
        if signature is not None and signature != self._sign(self._read_rows()).hexdigest():
            log.warning("%s is marked as done and its rows were changed since: training goes on", self.folder)
            return None
        if not checkpoint.newest_first(self.folder / "checkpoints") and not (self.folder / PRUNED).exists():
            log.warning("%s is marked as done but has no weights: training continues", self.folder)
            return None
        return summary

    def resume(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The state to resume from (None at the start); rows written after it are cut off, to be written again."""
        state = self.newest_state(device)
        self._pending.clear()
        self._good_bytes = state["metrics_bytes"] if state else 0
        self._last_step = state["last_row_step"] if state else -1
        self._signature = self._sign(self._read_rows(self._good_bytes))
        metrics = self.folder / "metrics.jsonl"
        about = environment() | {"total_steps": self.total_steps}
        try:
            checkpoint.remove_leftovers(self.folder)
            if metrics.exists() and metrics.stat().st_size > self._good_bytes:
                os.truncate(metrics, self._good_bytes)
            checkpoint.write_atomically(self.folder / "config.yaml", self.config_yaml.encode())
            content = json.dumps(described(self.identity), indent=1)
            checkpoint.write_atomically(self.folder / "identity.json", content.encode())
            checkpoint.write_atomically(self.folder / "env.json", json.dumps(about, indent=2).encode())
            for mark in ("FAILED", "DONE"):
                (self.folder / mark).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to {self.folder}: {error.strerror or error} (see paths.runs=)") from None
        self.tracker.start(self.folder, self.identity)
        self._next_checkpoint = time.monotonic() + self.every_seconds
        return state["trainer"] if state else None

    def newest_state(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The content of the newest checkpoint that is whole and fits the run and its rows."""
        return checkpoint.load_newest(self.folder / "checkpoints", self.identity, device, self._check)

    def _check(self, state: dict[str, Any]) -> None:
        """Raise a ValueError, or a KeyError, for a checkpoint's content that cannot be one of this run."""
        size, last = state["metrics_bytes"], state["last_row_step"]
        if type(size) is not int or size < 0 or type(last) is not int:
            raise ValueError(f"metrics_bytes={size!r} and last_row_step={last!r} must be whole numbers")
        if self._sign(self._read_rows(size)).hexdigest() != state["rows_sha256"]:
            raise ValueError("the rows in metrics.jsonl are not those that it was written with")
        if self.check is not None:
            self.check(state["trainer"])

    def forget_newest(self, why: str) -> None:
        """Put the newest checkpoint aside, which turned out to be damaged."""
        for path in checkpoint.newest_first(self.folder / "checkpoints")[:1]:
            checkpoint.put_aside(path, why)
        self.tracker.finish()

    def _sign(self, rows: bytes) -> "hashlib._Hash":
        """A digest of rows as those of this run: it begins with the run's identity."""
        identity = json.dumps(self.identity, sort_keys=True, default=str).encode()
        return hashlib.sha256(identity + b"\n" + rows)

    def _read_rows(self, size: int = -1) -> bytes:
        """The first bytes of metrics.jsonl (-1: all); fewer where it is shorter."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return b""
        with open(path, "rb") as file:
            return file.read(size)

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

    def _write_pending(self) -> bool:
        data = "".join(self._pending).encode()
        if not data:
            return True
        path = self.folder / "metrics.jsonl"
        if self._lock.lost:
            return False
        try:
            with open(path, "ab", buffering=0) as file:
                if file.write(data) != len(data):
                    raise OSError("only a part fitted")
                self._good_bytes += len(data)
                self._signature.update(data)
                self._pending.clear()
            return True
        except OSError as error:
            log.warning("cannot write %s (%s): rows wait in memory", path, error.strerror or error)
            if path.exists():
                os.truncate(path, self._good_bytes)  # no partial line may stay
            return False

    # ---- what it keeps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next checkpoint's time has come."""
        return time.monotonic() >= self._next_checkpoint

    def postpone(self) -> None:
        """Restart the time until the next checkpoint is due."""
        self._next_checkpoint = time.monotonic() + self.every_seconds

    def checkpoint(self, step: int, trainer: dict[str, Any]) -> None:
        """Write a checkpoint, with all rows so far.

        Raises:
            OSError: there is no room for it; earlier checkpoints are as they were.
        """
        self.postpone()
        if self._lock.lost:  # what stands there now, if anything, is another process's
            raise OSError(f"{self.folder} was removed under way")
        if not self._write_pending():
            raise OSError(f"no room for the rows in {self.folder}")
        self._sync_metrics()
        state = {
            "trainer": trainer,
            "metrics_bytes": self._good_bytes,
            "last_row_step": self._last_step,
            "rows_sha256": self._signature.hexdigest(),
        }
        try:
            checkpoint.save(self.folder / "checkpoints", step, state, self.identity, self.keep)
        except RuntimeError as error:  # torch.save reports a failed write as one
            raise OSError(str(error).split("\n")[0]) from error

    def _sync_metrics(self) -> None:
        path = self.folder / "metrics.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    def keep_spectra(self, phase: int, before: dict[str, list[float]], after: dict[str, list[float]]) -> None:
        """Write the singular values of the weights before and after a boundary into spectra.json."""
        pairs = {key: {"before": before[key], "after": after[key]} for key in before if key in after}
        self._keep("spectra.json", phase, pairs)

    def keep_weights(self, phase: int, rows: dict[str, list[dict[str, Any]]]) -> None:
        """Write rows about single weights at a boundary, by network, into weights.json."""
        self._keep("weights.json", phase, rows)

    def _keep(self, name: str, phase: int, content: dict[str, Any]) -> None:
        """Put the content for a phase into a JSON file; a full disk does not stop the run.

        The file is written anew each time, so that of a run with hundreds of boundaries only the first are kept.
        """
        if phase > KEPT_BOUNDARIES:
            return
        path = self.folder / name
        try:
            kept = json.loads(path.read_text()) if path.exists() else {}
            checkpoint.write_atomically(path, json.dumps({**kept, str(phase): content}).encode())
        except (OSError, ValueError) as error:
            log.warning("cannot write %s: %s", path, str(error).split("\n")[0])

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as done.

        Raises:
            TrainingError: the last rows, the weights or the mark could not be written; started again, the run resumes
                from its last checkpoint.
        """
        try:
            if self._lock.lost or not checkpoint.newest_first(self.folder / "checkpoints"):
                raise OSError("its weights are not there")
            if not self._write_pending():
                raise OSError("the last rows could not be written")
            self._sync_metrics()
            summary = {**summary, "rows_sha256": self._signature.hexdigest()}
            checkpoint.write_atomically(self.folder / "DONE", (json.dumps(summary) + "\n").encode())
        except OSError as error:
            raise TrainingError(
                f"cannot finish {self.folder} ({error.strerror or error}): make room and start the same command again"
            ) from None
