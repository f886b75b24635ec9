"""A run folder: identity, measurements and state of a run.

<runs>/<program>/<readable name>-<hash of the config>/
    config.yaml      the resolved configuration
    identity.json    the part of it that shapes the numbers: what the run is, and how it is executed
    env.json         versions, git commit, hardware of the newest start, with the step that it began at; `earlier` has
                     those of the starts before it, where they differ, oldest first
    metrics.jsonl    one JSON object a line, `step` strictly increasing: which trackers mirror. Before the rows
                     of a phase that a method acted before, a row {"kind": "boundary"} at the step of the row before it;
                     where a trigger fired, a row {"kind": "firing"}, after the row of the same step if there is one
    checkpoints/     the newest two; of a finished run the last
    checksums.json   of a finished run: SHA-256 of metrics.jsonl and DONE
    DONE             a JSON summary, written last
    FAILED           or one line that says why training stopped; gone when the run is started again
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import yaml

from harness.config.errors import ConfigError, TrainingError
from harness.run import checkpoint, provenance
from harness.run.checkpoint import reading
from harness.run.environment import environment
from harness.run.identity import described
from harness.run.lock import PAUSE, Held, Lock
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
        headline: the number of a summary that is shown, where it has one.
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
        headline: str | None = None,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.config_yaml = config_yaml
        self.tracker = tracker or Tracker()
        self.every_seconds = every_seconds
        self.keep = keep
        self.wait = wait
        self.headline = headline
        self._lock = Lock(folder / ".lock")
        self._pending: list[str] = []  # rows that could not be written yet (disk full)
        self._good_bytes = 0  # metrics.jsonl is whole up to here
        self._digest = hashlib.sha256()  # of these bytes
        self._last_step = -1
        self.next_checkpoint = 0.0  # on the monotonic clock; the loop sets it anew with each attempt

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._acquire()
        except OSError as error:
            raise self._cannot_write(error) from None
        return self

    def _acquire(self) -> None:
        """Take the folder's lock, or wait for it and say who holds it, once for each holder."""
        said = ""
        while True:
            try:
                return self._lock.acquire()
            except Held as holder:
                if not self.wait:
                    raise ConfigError(
                        f"run {self.folder.name} is being trained by another process ({holder}); wait for it or stop it"
                    ) from None
                if str(holder) != said:
                    log.info("waiting for another process, which trains %s (%s)", self.folder.name, holder)
                    said = str(holder)
                time.sleep(PAUSE)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Not of a signal's SystemExit: such a run is interrupted, not failed. Nor of a run that has ended well.
        if isinstance(error, Exception):
            with contextlib.suppress(OSError):
                if not (self.folder / "DONE").exists():
                    (self.folder / "FAILED").write_text(f"{type(error).__name__}: {error}".split("\n")[0] + "\n")
        self.tracker.finish()
        self._lock.release()

    def _cannot_write(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write to {self.folder}: {error.strerror or error} (see paths.runs=)")

    # ---- where the run stands

    @property
    def done(self) -> dict[str, Any] | None:
        """The summary of a finished run; None if it is not finished, or not whole, which is said in a warning.

        Raises:
            TrainingError: a file cannot be read at the moment.
        """
        if (done := self._text("DONE")) is None:
            return None
        try:
            return self._summary(done, self._text("metrics.jsonl") or b"", self._text("checksums.json"))
        except ValueError as error:
            log.warning("%s is damaged: training it again (%s)", self.folder, error)
            return None

    def _text(self, name: str) -> bytes | None:
        """A file's bytes; None if it is not there."""
        path = self.folder / name
        with reading(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def _summary(self, done: bytes, rows: bytes, checksums_text: bytes | None) -> dict[str, Any]:
        """The summary that DONE, metrics.jsonl and checksums.json hold; the last is None of older runs.

        Raises:
            ValueError: they are not those that a run ends with.
        """
        try:
            summary = json.loads(done)
            checksums = None if checksums_text is None else json.loads(checksums_text)
        except ValueError:
            raise ValueError("DONE or checksums.json is no JSON") from None
        if not isinstance(summary, dict) or not isinstance(checksums, dict | None):
            raise ValueError("DONE or checksums.json is no JSON object")
        if checksums is not None:
            for name, content in (("metrics.jsonl", rows), ("DONE", done)):
                if checksums.get(name) != hashlib.sha256(content).hexdigest():
                    raise ValueError(f"{name} is not what the run has written")
            return summary
        # Of a run from before there were checksums: as far as its content tells.
        for number in ("steps", "seconds", *(key for key in summary if key == self.headline)):
            if not isinstance(summary.get(number), int | float):
                raise ValueError(f"DONE has no number {number}")
        check_rows(rows)
        return summary

    def mend_texts(self) -> None:
        """Of a finished run: write again what is damaged of the texts that say what it is, which this process knows."""
        identity = self._identity_text()
        with contextlib.suppress(OSError):
            if _is_damaged(self.folder / "identity.json", identity):
                checkpoint.write_atomically(self.folder / "identity.json", identity)
            if _is_damaged(self.folder / "config.yaml"):
                checkpoint.write_atomically(self.folder / "config.yaml", self.config_yaml.encode())
            if _is_damaged(path := self.folder / "env.json"):
                path.rename(path.with_name("damaged-env.json"))

    def resume(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The state to resume from (None at the start); rows written after it are cut off, to be written again.

        Raises:
            TrainingError: what the run has written cannot be read at the moment; nothing was changed.
            ConfigError: the folder cannot be written.
        """
        state = self.newest_state(device)
        self._pending.clear()
        self._good_bytes = state["metrics_bytes"] if state else 0
        self._digest = hashlib.sha256((self._text("metrics.jsonl") or b"")[: self._good_bytes])
        self._last_step = state["last_row_step"] if state else -1
        starts = self._starts()
        about = {**environment(), "step": state["trainer"].get("step", 0) if state else 0}
        if starts and (changes := provenance.changes(starts[-1], about)):
            log.warning("%s goes on in another environment (%s); env.json keeps both", self.folder, changes)
        try:
            checkpoint.remove_leftovers(self.folder)
            for mark in ("FAILED", "DONE", "checksums.json"):
                (self.folder / mark).unlink(missing_ok=True)
            with open(self.folder / "metrics.jsonl", "ab") as metrics:
                metrics.truncate(self._good_bytes)
            checkpoint.write_atomically(self.folder / "config.yaml", self.config_yaml.encode())
            checkpoint.write_atomically(self.folder / "identity.json", self._identity_text())
            self._write_starts([*starts, about])
        except OSError as error:
            raise self._cannot_write(error) from None
        self.tracker.start(self.folder, self.identity)
        self.next_checkpoint = time.monotonic() + self.every_seconds
        return state["trainer"] if state else None

    def _identity_text(self) -> bytes:
        return json.dumps(described(self.identity), indent=1).encode()

    def _starts(self) -> list[Mapping[str, Any]]:
        """The environments of this run's starts, oldest first; none of a file that is damaged."""
        try:
            about = json.loads(self._text("env.json") or b"")
            return provenance.starts(about)
        except (ValueError, AttributeError, TypeError):
            return []

    def _write_starts(self, starts: Sequence[Mapping[str, Any]]) -> None:
        *earlier, newest = provenance.without_repeats(starts)
        about = {**newest, **({"earlier": earlier} if earlier else {})}
        checkpoint.write_atomically(self.folder / "env.json", json.dumps(about, indent=2).encode())

    def begin_from(self, other: Path, step: int) -> None:
        """Say that the steps before `step` were trained in another folder, a shared first phase's.

        Raises:
            ConfigError: the folder cannot be written.
        """
        try:
            before = provenance.starts(json.loads((other / "env.json").read_bytes()))
        except (OSError, ValueError, AttributeError, TypeError):
            before = []  # removed or damaged meanwhile
        *starts, own = self._starts() or [environment()]
        if before and (changes := provenance.changes(before[-1], own)):
            log.warning("%s: the shared first phase has another environment (%s); env.json keeps both", other, changes)
        try:
            self._write_starts([*starts, *before, {**own, "step": step}])
        except OSError as error:
            raise self._cannot_write(error) from None

    def newest_state(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The content of the newest checkpoint that is whole and fits the run and its rows."""
        return checkpoint.load_newest(self.folder / "checkpoints", self.identity, device, self._check_rows)

    def _check_rows(self, state: dict[str, Any]) -> None:
        """Raise a ValueError for a checkpoint whose rows are not all in metrics.jsonl, as they were written."""
        size = state["metrics_bytes"]
        rows = (self._text("metrics.jsonl") or b"")[:size]
        if len(rows) < size or not rows.endswith(b"\n" if size else b""):
            raise ValueError("metrics.jsonl lacks rows that it was written with")
        check_rows(rows, state.get("metrics_sha256"))

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
                self._digest.update(data)
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
        state = {
            "trainer": trainer,
            "metrics_bytes": self._good_bytes,
            "metrics_sha256": self._digest.hexdigest(),
            "last_row_step": self._last_step,
        }
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
            done = (json.dumps(summary) + "\n").encode()
            checksums = {"metrics.jsonl": self._digest.hexdigest(), "DONE": hashlib.sha256(done).hexdigest()}
            checkpoint.write_atomically(self.folder / "checksums.json", json.dumps(checksums, indent=1).encode())
            checkpoint.write_atomically(self.folder / "DONE", done)
            checkpoint.remove_old(self.folder / "checkpoints", keep=1)
        except OSError as error:
            raise TrainingError(
                f"cannot finish {self.folder} ({error.strerror or error}): make room and start the same command again"
            ) from error


def check_rows(rows: bytes, digest: str | None = None) -> None:
    """Whether rows are what a run has written: by their digest, or where none was kept by what they look like.

    Raises:
        ValueError: they are not.
    """
    if digest is not None:
        if hashlib.sha256(rows).hexdigest() != digest:
            raise ValueError("metrics.jsonl is not what the run has written")
        return
    last = -math.inf
    for number, line in enumerate(rows.splitlines(), 1):
        try:
            row = json.loads(line)
            step, has_kind = row["step"], "kind" in row
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"metrics.jsonl has no row in line {number}") from None
        if not isinstance(step, int) or step < last + (not has_kind):
            raise ValueError(f"metrics.jsonl goes back in line {number}")
        last = step


def _is_damaged(path: Path, content: bytes | None = None) -> bool:
    """Whether a text is absent, or is not this content; without a content, whether it is no JSON object or no YAML."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return path.suffix != ".json" or content is not None
    try:
        if content is not None:
            return bool(json.loads(data) != json.loads(content))
        return not isinstance(json.loads(data) if path.suffix == ".json" else yaml.safe_load(data), dict)
    except (ValueError, RecursionError, yaml.YAMLError):
        return True
