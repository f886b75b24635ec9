"""Store a replay on disk in segments, so that a checkpoint does not write all of it again.

A ring only appends rows. So its history is cut into segments, each of some rows of one environment, which are written
once. Saving writes the new rows and returns a manifest of file names for the trainer's checkpoint.

A segment is compressed (each row XORed with the one before it, then zlib) and named by its SHA-256, so that a name
always means the same rows. The name appears only when the segment is completely on the disk.
"""

import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.config.errors import TrainingError
from harness.run.files import reading, write_atomically

DIGITS = 32  # how many digits of the digest are in the file name
# The name of a segment: environment, first row, row after the last, digest. Names stand in checkpoints, which may come
# from somebody else: any other name could lead out of the folder.
SEGMENT = re.compile(rf"\d+-\d+-\d+-[0-9a-f]{{{DIGITS}}}", re.ASCII)
LEFTOVER = re.compile(r"\.\d+-.*\.tmp", re.ASCII)  # of a write that was interrupted


class Ring:
    """Rings of rows, one for each environment: once a ring is full, a new row replaces the oldest.

    Attributes:
        columns: name -> (envs, rows, ...).
        rows: length of a ring.
        written: number of rows ever appended, for each environment.
        first_sampled: number of the first row that may be sampled, for each environment.
    """

    def __init__(self, columns: dict[str, Tensor], rows: int, envs: int) -> None:
        self.columns, self.rows = columns, rows
        self.written, self.first_sampled = [0] * envs, [0] * envs

    def forget(self) -> None:
        """Sample none of the present rows any more."""
        self.first_sampled = list(self.written)

    def after_load(self) -> None:
        """Update what depends on the columns; called after `RingStore.load` has filled them."""


class RingStore:
    """The segments of one ring in one folder.

    Args:
        folder: the folder, which is created if it is missing.
        rows: rows of a segment.
    """

    def __init__(self, folder: Path, rows: int = 1024) -> None:
        self.folder, self.rows = folder, rows
        self._complete: dict[tuple[int, int], str] = {}  # complete segments: (environment, first row) -> file name
        self._manifests: list[set[str]] = []  # file names of each checkpoint that still exists

    def save(self, ring: Ring) -> dict[str, Any]:
        """Write every row of the ring that is not on the disk yet, on all cores.

        Returns:
            A manifest for `load`, of plain numbers and strings.

        Raises:
            OSError: the disk is full or read-only.
        """
        size = min(self.rows, ring.rows)

        def write_segment(env: int, start: int) -> str:
            """Write the segment that begins at row `start`, unless it is there, and return its file name."""
            if (env, start) in self._complete:
                return self._complete[env, start]
            first, stop = max(start, ring.written[env] - ring.rows), min(start + size, ring.written[env])
            name = self._write(env, first, stop, _rows(ring, env, first, stop))
            if stop - first == size:
                self._complete[env, start] = name
            return name

        segments = []  # of the rows that the ring still has: (environment, first row)
        for env, written in enumerate(ring.written):
            for start in range(max(written - ring.rows, 0) // size * size, written, size):
                segments.append((env, start))
        self._complete = {key: self._complete[key] for key in segments if key in self._complete}
        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="replay") as threads:
            names = list(threads.map(lambda segment: write_segment(*segment), segments))
        return {"written": list(ring.written), "begins": list(ring.first_sampled), "segments": names}

    def remove_unneeded(self, manifest: dict[str, Any], keep: int) -> None:
        """Remove segments that none of the last `keep` checkpoints needs.

        Args:
            manifest: the manifest of the checkpoint that has just been written.
            keep: number of checkpoints that are kept.
        """
        self._manifests = [*self._manifests, set(manifest["segments"])][-keep:]
        needed = set().union(*self._manifests)
        for path in self.folder.glob("*"):
            is_ours = SEGMENT.fullmatch(path.name) or LEFTOVER.fullmatch(path.name)
            if is_ours and path.name not in needed:
                path.unlink(missing_ok=True)

    def load(self, ring: Ring, manifest: dict[str, Any], elsewhere: Path | None = None) -> None:
        """Fill a ring with the rows of a manifest.

        Args:
            ring: an empty ring of the same sizes.
            manifest: what `save` returned.
            elsewhere: a folder that may have segments which this one lacks; they are linked or copied here.

        Raises:
            TrainingError: a segment is missing or damaged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in manifest["segments"]:
            if not SEGMENT.fullmatch(name):
                raise TrainingError(f"{name!r} is no segment of a replay: remove {self.folder.parent} to train again")
            env, start, stop = (int(part) for part in name.split("-")[:3])
            columns = _decode(self._fetch(name, elsewhere))
            first = max(start, manifest["written"][env] - ring.rows)
            for key, value in columns.items():
                column = ring.columns[key]
                slots = torch.arange(first, stop, device=column.device) % ring.rows
                column[env, slots] = value[first - start :].to(column.device)
            if stop - start == min(self.rows, ring.rows):
                self._complete[env, start] = name
        ring.written, ring.first_sampled = list(manifest["written"]), list(manifest["begins"])
        ring.after_load()
        self._manifests = [set(manifest["segments"])]

    def _fetch(self, name: str, elsewhere: Path | None) -> bytes:
        """Return the bytes of an intact segment, which is linked or copied here if it is in the other folder."""
        own_path = self.folder / name
        paths = [own_path, elsewhere / name] if elsewhere else [own_path]
        for path in paths:
            if (data := _read_intact(path)) is None:
                continue
            if path != own_path:
                own_path.unlink(missing_ok=True)  # it is damaged, if it exists
                try:
                    os.link(path, own_path)
                except OSError:  # the folders are on different file systems
                    write_atomically(own_path, data)
            return data
        damaged = [str(path) for path in paths if path.exists()]
        fault = f"is damaged in {' and '.join(damaged)}" if damaged else f"is missing in {self.folder}"
        run_folders = " and ".join(str(path.parents[1]) for path in paths)
        raise TrainingError(f"the replay's segment {name} {fault}: remove {run_folders} to train again")

    def _write(self, env: int, start: int, stop: int, columns: dict[str, np.ndarray]) -> str:
        """Write a segment with rows `start` to `stop` of an environment, unless it exists, and return its file name."""
        data = _encode(columns)
        name = f"{env:03d}-{start:012d}-{stop:012d}-{hashlib.sha256(data).hexdigest()[:DIGITS]}"
        self.folder.mkdir(parents=True, exist_ok=True)
        if _read_intact(self.folder / name) is None:
            write_atomically(self.folder / name, data)
        return name


def check_segments(run_folder: Path, state: dict[str, Any]) -> None:
    """Check the segments of the replay that a checkpoint of an agent names.

    Args:
        run_folder: the run's folder.
        state: the trainer's state; its `origin`, where it has one, may have segments that the folder lacks.

    Raises:
        ValueError: one is missing or damaged, or its name is none that this module writes.
        TrainingError: one cannot be read at the moment.
    """
    folders = [run_folder / "replay", *([Path(state["origin"]) / "replay"] if "origin" in state else [])]
    for name in state["replay"]["segments"]:
        if not isinstance(name, str) or not SEGMENT.fullmatch(name):
            raise ValueError(f"{name!r} is no segment of a replay")
        with reading(run_folder):
            if all(_read_intact(folder / name) is None for folder in folders):
                raise ValueError(f"the replay's segment {name} is missing or damaged")


def _rows(ring: Ring, env: int, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return copies of rows `start` to `stop` (counted from the start of training) of one environment, by column."""
    slots = torch.arange(start, stop) % ring.rows
    return {key: column[env, slots.to(column.device)].cpu().numpy() for key, column in ring.columns.items()}


def _encode(columns: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a segment: a line of JSON that describes the columns, then each column compressed."""
    blocks, descriptions = [], []
    for key, values in columns.items():
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
        difference = raw.copy()
        difference[1:] ^= raw[:-1]  # mostly zeros, as most pixels stay the same from row to row
        blocks.append(zlib.compress(difference.data, 1))
        descriptions.append({"name": key, "dtype": values.dtype.str, "shape": values.shape, "bytes": len(blocks[-1])})
    return json.dumps(descriptions).encode() + b"\n" + b"".join(blocks)


def _read_intact(path: Path) -> bytes | None:
    """Return the bytes of a segment; None if it is missing or its digest is not the one in its name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return data if hashlib.sha256(data).hexdigest()[:DIGITS] == path.name.rsplit("-", 1)[-1] else None


def _decode(data: bytes) -> dict[str, Tensor]:
    """Return the columns of a segment from its bytes; the inverse of `_encode`."""
    head, _, blocks = data.partition(b"\n")
    columns, start = {}, 0
    for description in json.loads(head):
        shape: Sequence[int] = description["shape"]
        end = start + description["bytes"]
        difference = np.frombuffer(zlib.decompress(blocks[start:end]), np.uint8).reshape(shape[0], -1)
        values = np.bitwise_xor.accumulate(difference, axis=0).view(np.dtype(description["dtype"])).reshape(shape)
        columns[description["name"]] = torch.from_numpy(values)
        start = end
    return columns
