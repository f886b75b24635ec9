"""A run folder: identity, measurements and state of a run.

<runs>/<program>/<readable name>-<hash of the config>/
    config.yaml      the resolved configuration
    identity.json    the part of it that shapes the numbers: what the run is, and how it is executed
    env.json         versions, git commit, hardware of the newest start, with the step that it began at; `earlier` has
                     those of the starts before it, where they differ, oldest first
    metrics.jsonl    one JSON object a line, mirrored by trackers; `step` never falls. Before the rows of a phase that a
                     method acted before there is a row {"kind": "boundary"}, at the step of the measurement before it;
                     where a trigger fired a row {"kind": "firing"}, after the row of the same step if there is one
    checkpoints/     the newest two; of a finished run the last
    checksums.json   of a finished run: SHA-256 of metrics.jsonl and DONE
    DONE             a JSON summary, written last
    FAILED           of a run that stopped with an error: one line that says why; gone when it is started again
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import yaml

from harness.config.errors import ConfigError, TrainingError
from harness.run import checkpoint, provenance
from harness.run.environment import environment
from harness.run.files import content_of, reading, remove_leftovers, write_atomically
from harness.run.identity import described
from harness.run.lock import PAUSE, Held, Lock
from harness.run.tracker import Tracker

log = logging.getLogger(__name__)
CheckFiles = Callable[[Path, dict[str, Any]], None]
# A disk that is full or does not answer, or a limit of the process: the same command may succeed later.
MAY_PASS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    | {errno.ETIMEDOUT, errno.ENOLCK, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO}
)
NAMED_AFTER = 1.0  # seconds; who takes a lock names itself in it a moment later


class Run:
    """One run and its folder, locked against a second process while it is open.

    Args:
        folder: the run's folder; the caller names it by the identity's digest.
        identity: the part of the config that the numbers depend on (see `harness.run.identity`).
        config_yaml: the resolved config, which is written for people to read.
        tracker: mirrors rows; None mirrors nothing.
        every_seconds: seconds between checkpoints within a phase.
        keep: number of checkpoints that stay.
        wait: whether to wait for another process that holds the run; otherwise a ConfigError is raised.
        headline: name of the summary's number that is shown; None if there is none.
        option: the option that says where the folder lies, for messages.
        check_files: `check_files(folder, trainer)` raises a ValueError if a file of the folder that a checkpoint's
            trainer state needs, such as a part of a replay, is missing or damaged; None if it needs none.
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
        option: str = "paths.runs",
        check_files: CheckFiles | None = None,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.config_yaml = config_yaml
        self.tracker = tracker or Tracker()
        self.every_seconds = every_seconds
        self.keep = keep
        self.wait = wait
        self.headline = headline
        self.option = option
        self.check_files = check_files
        self._mirrors = False  # whether the tracker was started; that of a run that is done already is not
        self._lock = Lock(folder / ".lock")
        self._pending: list[str] = []  # rows that could not be written yet (disk full)
        self._complete_bytes = 0  # length of the complete rows in metrics.jsonl
        self._digest = hashlib.sha256()  # of these bytes
        self._last_step = -1
        self.next_checkpoint = 0.0  # seconds of time.monotonic; the training loop sets it after each save

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._acquire()
        except OSError as error:
            raise self._cannot_write(error) from None
        return self

    def _acquire(self) -> None:
        """Take the folder's lock, or wait for it and log who holds it, once for each holder.

        Another job of the same sweep is always waited for: two spellings of one option, or several checkpoints that a
        full reset does not depend on, make one run of two jobs, which is trained once.
        """
        logged_holder, last_named = "", time.monotonic()
        while True:
            try:
                return self._lock.acquire()
            except Held as holder:
                owner = holder.owner
                is_named = owner is not None and not owner.is_gone
                last_named = time.monotonic() if is_named else last_named
                may_still_be_named = not is_named and time.monotonic() - last_named <= NAMED_AFTER
                is_waited_for = self.wait or may_still_be_named or (owner is not None and owner.is_in_this_sweep)
                if not is_waited_for:
                    raise ConfigError(
                        f"run {self.folder.name} is being trained by another process ({holder}); wait for it or stop it"
                    ) from None
                if str(holder) != logged_holder:
                    log.info("waiting for another process, which trains %s (%s)", self.folder.name, holder)
                    logged_holder = str(holder)
                time.sleep(PAUSE)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # A signal's SystemExit interrupts a run, which has not failed; a finished run stays finished.
        if isinstance(error, Exception):
            with contextlib.suppress(OSError):
                if not (self.folder / "DONE").exists():
                    line = f"{type(error).__name__}: {error}".split("\n")[0] + "\n"
                    write_atomically(self.folder / "FAILED", line.encode(errors="replace"))
        if self._mirrors:
            self._mirror("finish")
        self._lock.release()

    def _cannot_write(self, error: OSError) -> ConfigError | TrainingError:
        """Return the error to raise: of a system that may allow it later, or of an option that must be changed."""
        kind = TrainingError if error.errno in MAY_PASS else ConfigError
        return kind(f"cannot write to {self.folder}: {error.strerror or error} (see {self.option}=)")

    # ---- state: finished, to be resumed, or new

    @property
    def done(self) -> dict[str, Any] | None:
        """The summary of a finished run; None if it is unfinished, or damaged, which is logged as a warning.

        Raises:
            TrainingError: a file cannot be read at the moment.
        """
        if (done_file := self._content_of("DONE")) is None:
            return None
        try:
            return self._summary(
                done_file, self._content_of("metrics.jsonl") or b"", self._content_of("checksums.json")
            )
        except ValueError as error:
            log.warning("%s is damaged: training it again (%s)", self.folder, error)
            return None

    def _content_of(self, name: str) -> bytes | None:
        """Return the bytes of a file of the folder; None if it does not exist."""
        path = self.folder / name
        with reading(path):
            return content_of(path)

    def _summary(self, done_file: bytes, rows: bytes, checksums_file: bytes | None) -> dict[str, Any]:
        """Return the summary of a finished run, after a check that its files are as the run has written them.

        Args:
            done_file: content of DONE.
            rows: content of metrics.jsonl.
            checksums_file: content of checksums.json; older runs have none.

        Raises:
            ValueError: a file is damaged.
        """
        try:
            summary = json.loads(done_file)
            checksums = None if checksums_file is None else json.loads(checksums_file)
        except ValueError:
            raise ValueError("DONE or checksums.json is no JSON") from None
        if not isinstance(summary, dict) or not isinstance(checksums, dict | None):
            raise ValueError("DONE or checksums.json is no JSON object")
        if checksums is not None:
            for name, content in (("metrics.jsonl", rows), ("DONE", done_file)):
                if checksums.get(name) != hashlib.sha256(content).hexdigest():
                    raise ValueError(f"{name} is not what the run has written")
            return summary
        # A run from before there were checksums: damage shows only if a number or a row is not readable.
        for number in ("steps", "seconds", *(key for key in summary if key == self.headline)):
            if not isinstance(summary.get(number), int | float):
                raise ValueError(f"DONE has no number {number}")
        check_rows(rows)
        return summary

    def rewrite_damaged_files(self) -> None:
        """Rewrite damaged identity.json and config.yaml of a finished run, whose content this process knows.

        A damaged env.json cannot be rewritten; it is renamed. Of the checkpoints the last one stays, also if the run
        was killed before it had removed the others.
        """
        identity = self._identity_json()
        with contextlib.suppress(OSError):
            if not _holds_json(self.folder / "identity.json", identity):
                write_atomically(self.folder / "identity.json", identity)
        with contextlib.suppress(OSError):
            if not _holds_a_mapping(self.folder / "config.yaml"):
                write_atomically(self.folder / "config.yaml", self.config_yaml.encode())
        with contextlib.suppress(OSError):
            env_file = content_of(self.folder / "env.json")
            if env_file is not None and _starts_in(env_file) is None:
                self._put_env_aside()
        with contextlib.suppress(OSError, TrainingError):
            checkpoint.remove_old(self.folder / "checkpoints", keep=1)

    def resume(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """Prepare the folder for training and return the state to resume from; None for a run that starts.

        Rows that were written after that state are removed, since training will log them again.

        Raises:
            TrainingError: a file of the run cannot be read at the moment; nothing was changed.
            ConfigError: the folder cannot be written; a TrainingError where it may be possible later.
        """
        state = self.newest_state(device)
        self._pending.clear()
        self._complete_bytes = state["metrics_bytes"] if state else 0
        self._digest = hashlib.sha256((self._content_of("metrics.jsonl") or b"")[: self._complete_bytes])
        self._last_step = state["last_row_step"] if state else -1
        env_file = self._content_of("env.json")
        starts = _starts_in(env_file or b"")
        this_start = {**environment(), "step": state["trainer"].get("step", 0) if state else 0}
        if starts and (changes := provenance.changes(starts[-1], this_start)):
            log.warning("%s goes on in another environment (%s); env.json keeps both", self.folder, changes)
        try:
            remove_leftovers(self.folder)
            if env_file is not None and starts is None:
                self._put_env_aside()
            for name in ("FAILED", "DONE", "checksums.json"):
                (self.folder / name).unlink(missing_ok=True)
            rows = self.folder / "metrics.jsonl"
            if rows.is_symlink():  # what it leads to stays as it is: nothing but this run's rows is cut
                write_atomically(rows, (self._content_of("metrics.jsonl") or b"")[: self._complete_bytes])
            with open(rows, "ab") as metrics:
                metrics.truncate(self._complete_bytes)
            write_atomically(self.folder / "config.yaml", self.config_yaml.encode())
            write_atomically(self.folder / "identity.json", self._identity_json())
            self._write_starts([*(starts or []), this_start])
        except OSError as error:
            raise self._cannot_write(error) from None
        self._mirrors = True
        self._mirror("start", self.folder, self.identity)
        self.next_checkpoint = time.monotonic() + self.every_seconds
        return state["trainer"] if state else None

    def _identity_json(self) -> bytes:
        return json.dumps(described(self.identity), indent=1).encode()

    def _starts(self) -> list[Mapping[str, Any]]:
        """Return the environments of this run's starts, oldest first; an empty list if env.json is missing or damaged.

        Raises:
            TrainingError: env.json cannot be read at the moment.
        """
        return _starts_in(self._content_of("env.json") or b"") or []

    def _put_env_aside(self) -> None:
        """Rename a damaged env.json, which cannot be written again: only it knows the environments of earlier starts.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.folder / "env.json"
        log.warning("%s is damaged and renamed: where earlier rows were trained is not known", path)
        path.rename(path.with_name(f"damaged-{path.name}"))

    def _write_starts(self, starts: Sequence[Mapping[str, Any]]) -> None:
        """Write env.json: the newest start's environment, with those of earlier starts that differ."""
        *earlier, newest = provenance.without_repeats(starts)
        env_file = {**newest, **({"earlier": earlier} if earlier else {})}
        write_atomically(self.folder / "env.json", json.dumps(env_file, indent=2).encode())

    def begin_from(self, other: Path, step: int) -> None:
        """Record in env.json that the steps before `step` were trained in `other`, the folder of a shared first phase.

        Raises:
            TrainingError: the env.json of `other` cannot be read at the moment.
            ConfigError: the folder cannot be written; a TrainingError where it may be possible later.
        """
        with reading(other / "env.json"):
            shared_starts = _starts_in(content_of(other / "env.json") or b"")
        if shared_starts is None:
            log.warning("%s is missing or damaged: where the first phase was trained is not known", other / "env.json")
        *earlier_starts, this_start = self._starts() or [environment()]
        if shared_starts and (changes := provenance.changes(shared_starts[-1], this_start)):
            log.warning("%s: the shared first phase has another environment (%s); env.json keeps both", other, changes)
        try:
            self._write_starts([*earlier_starts, *(shared_starts or []), {**this_start, "step": step}])
        except OSError as error:
            raise self._cannot_write(error) from None

    def newest_state(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """Return the content of the newest checkpoint that is undamaged and fits the run and its rows, or None."""
        return checkpoint.load_newest(self.folder / "checkpoints", self.identity, device, self._check)

    def _check(self, state: dict[str, Any]) -> None:
        """Raise a ValueError unless the folder's other files are as a checkpoint needs them."""
        self._check_rows(state)
        if self.check_files is not None:
            self.check_files(self.folder, state["trainer"])

    def _check_rows(self, state: dict[str, Any]) -> None:
        """Raise a ValueError unless metrics.jsonl has all rows that were written before a checkpoint."""
        size = state["metrics_bytes"]
        rows = (self._content_of("metrics.jsonl") or b"")[:size]
        ends_with_a_row = size == 0 or rows.endswith(b"\n")
        if len(rows) < size or not ends_with_a_row:
            raise ValueError("metrics.jsonl lacks rows that it was written with")
        check_rows(rows, state.get("metrics_sha256"))

    # ---- rows

    def log(self, row: dict[str, Any]) -> None:
        """Append one row to metrics.jsonl. If the disk is full, rows wait in memory until they can be written.

        Args:
            row: numbers and texts by name. `row["step"]` must be larger than in the row before; in a row with a `kind`
                it may be the same.

        Raises:
            ValueError: the step goes back.
        """
        smallest_step = self._last_step if "kind" in row else self._last_step + 1
        if row["step"] < smallest_step:
            raise ValueError(f"step {row['step']} after step {self._last_step}: rows must go forward")
        self._last_step = row["step"]
        self._pending.append(json.dumps(row) + "\n")
        self._write_pending()
        self._mirror("log", row)

    def append_rows(self, text: str) -> None:
        """Append the rows of a shared first phase.

        Args:
            text: content of its metrics.jsonl.
        """
        self._pending.append(text)
        self._last_step = json.loads(text.rstrip("\n").rsplit("\n", 1)[-1])["step"] if text else -1
        self._write_pending()
        for line in text.splitlines():
            self._mirror("log", json.loads(line))

    def _write_pending(self, sync: bool = False) -> bool:
        """Append the waiting rows, and return whether all rows are in the file now.

        Args:
            sync: whether to return True only if they are safely on the disk.
        """
        data, path = "".join(self._pending).encode(), self.folder / "metrics.jsonl"
        try:
            with open(path, "ab", buffering=0) as file:
                if file.tell() != self._complete_bytes:
                    raise OSError("someone else changed or removed it")
                if file.write(data) != len(data):
                    file.truncate(self._complete_bytes)  # no partial line may stay
                    raise OSError("only a part fitted")
                self._complete_bytes += len(data)
                self._digest.update(data)
                self._pending.clear()
                if sync:
                    os.fsync(file.fileno())
            return True
        except OSError as error:
            log.warning("cannot write %s (%s): rows wait in memory", path, error.strerror or error)
            return False

    def _mirror(self, event: str, *arguments: Any) -> None:
        """Call a method of the tracker. One that raises is given up with a warning: a mirror never stops training."""
        try:
            getattr(self.tracker, event)(*arguments)
        except Exception as error:
            name, reason = type(self.tracker).__name__, " ".join(f"{type(error).__name__}: {error}".split())
            log.warning("tracker %s stopped (%s): training continues, metrics.jsonl is complete", name, reason)
            self.tracker = Tracker()

    # ---- checkpoints, and the end

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next checkpoint's time has come."""
        return time.monotonic() >= self.next_checkpoint

    def checkpoint(self, step: int, trainer: dict[str, Any]) -> None:
        """Write a checkpoint, after all rows so far.

        Args:
            step: steps made in the run.
            trainer: the trainer's state: nested dicts, lists and tuples of tensors, numbers and strings.

        Raises:
            OSError: there is no room for it; earlier checkpoints are as they were.
        """
        if not self._write_pending(sync=True):
            raise OSError(f"the rows cannot be written in {self.folder}")
        state = {
            "trainer": trainer,
            "metrics_bytes": self._complete_bytes,
            "metrics_sha256": self._digest.hexdigest(),
            "last_row_step": self._last_step,
        }
        checkpoint.save(self.folder / "checkpoints", step, state, self.identity, self.keep)

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as done, and remove all its checkpoints but the last.

        Args:
            summary: numbers by name, the content of DONE.

        Raises:
            TrainingError: the last rows or the mark could not be written; started again, the run resumes from its last
                checkpoint.
        """
        try:
            if not self._write_pending(sync=True):
                raise OSError("the last rows could not be written")
            done_file = (json.dumps(summary) + "\n").encode()
            checksums = {"metrics.jsonl": self._digest.hexdigest(), "DONE": hashlib.sha256(done_file).hexdigest()}
            write_atomically(self.folder / "checksums.json", json.dumps(checksums, indent=1).encode())
            write_atomically(self.folder / "DONE", done_file)
            checkpoint.remove_old(self.folder / "checkpoints", keep=1)
        except OSError as error:
            raise TrainingError(
                f"cannot finish {self.folder} ({error.strerror or error}): make room and start the same command again"
            ) from error


def check_rows(rows: bytes, digest: str | None = None) -> None:
    """Check that rows are as a run has written them.

    Args:
        rows: content of metrics.jsonl.
        digest: their SHA-256; None in older runs, where each line must be a row and steps must not go back.

    Raises:
        ValueError: the rows are damaged.
    """
    if digest is not None:
        if hashlib.sha256(rows).hexdigest() != digest:
            raise ValueError("metrics.jsonl is not what the run has written")
        return
    last_step = -math.inf
    for number, line in enumerate(rows.splitlines(), 1):
        try:
            row = json.loads(line)
            step, has_kind = row["step"], "kind" in row
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"metrics.jsonl has no row in line {number}") from None
        smallest_step = last_step if has_kind else last_step + 1
        if not isinstance(step, int) or step < smallest_step:
            raise ValueError(f"metrics.jsonl goes back in line {number}")
        last_step = step


def _starts_in(env_file: bytes) -> list[Mapping[str, Any]] | None:
    """Return the environments in the content of an env.json, oldest first; None if it is damaged."""
    try:
        starts = provenance.starts(json.loads(env_file))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    are_environments = all(
        isinstance(start, dict)
        and isinstance(start.get("step", 0), int)
        and isinstance(start.get("packages", {}), dict)
        for start in starts
    )
    return starts if are_environments else None


def _holds_json(path: Path, content: bytes) -> bool:
    """Return whether a file exists and holds the same JSON as `content`; an OSError if it cannot be read now."""
    data = content_of(path)
    try:
        return data is not None and bool(json.loads(data) == json.loads(content))
    except (ValueError, RecursionError):
        return False


def _holds_a_mapping(path: Path) -> bool:
    """Return whether a YAML file exists and holds a mapping; an OSError if it cannot be read now."""
    data = content_of(path)
    try:
        return data is not None and isinstance(yaml.safe_load(data), dict)
    except (ValueError, RecursionError, yaml.YAMLError):
        return False
