"""The replay on disk, in segments, so that a checkpoint does not write everything again.

A ring only ever appends rows. So its history is cut into segments of some rows of one environment, each written once.
Saving writes what is new, and returns a manifest of file names for the trainer's checkpoint.

A segment is compressed (each row XORed with the one before it, then zlib) and named by its SHA-256, so one
name always means the same rows; the name appears only once the whole segment is on the disk.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.config.errors import TrainingError
from harness.run.checkpoint import write_atomically

DIGITS = 32  # of the digest, in the file name


class Ring:
    """What is stored: rings of rows, one for each environment.

    Attributes:
        columns: name -> (envs, rows, ...).
        rows: length of a ring.
        written: rows ever appended, for each environment.
        begins: the first row of each environment that may be drawn.
    """

    def __init__(self, columns: dict[str, Tensor], rows: int, envs: int) -> None:
        self.columns, self.rows = columns, rows
        self.written, self.begins = [0] * envs, [0] * envs

    def forget(self) -> None:
        """Draw nothing more of what was appended until now."""
        self.begins = list(self.written)

    def loaded(self) -> None:
        """Called after the columns were filled."""


class RingStore:
    """The segments of one ring in one folder.

    Args:
        folder: made if absent.
        rows: of a segment.
    """

    def __init__(self, folder: Path, rows: int = 1024) -> None:
        self.folder, self.rows = folder, rows
        self._full: dict[tuple[int, int], str] = {}  # (environment, start) -> file name
        self._manifests: list[set[str]] = []  # of checkpoints that are still there

    def save(self, ring: Ring) -> dict[str, Any]:
        """Write every row of the ring that is not on the disk yet, on all cores.

        Returns:
            A manifest for `load`, of plain numbers and strings.

        Raises:
            OSError: the disk is full or read-only.
        """
        size = min(self.rows, ring.rows)

        def name_of(env: int, start: int) -> str:
            if (env, start) in self._full:
                return self._full[env, start]
            first, stop = max(start, ring.written[env] - ring.rows), min(start + size, ring.written[env])
            name = self._write(env, first, stop, _rows(ring, env, first, stop))
            if stop - first == size:
                self._full[env, start] = name
            return name

        held = [
            (env, start)
            for env, written in enumerate(ring.written)
            for start in range(max(written - ring.rows, 0) // size * size, written, size)
        ]
        self._full = {key: self._full[key] for key in held if key in self._full}
        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="replay") as threads:
            names = list(threads.map(name_of, *zip(*held, strict=True))) if held else []
        return {"written": list(ring.written), "begins": list(ring.begins), "segments": names}

    def committed(self, manifest: dict[str, Any], keep: int) -> None:
        """The checkpoint with this manifest, the last save's, is written: remove what none of the last `keep` needs."""
        self._manifests = [*self._manifests, set(manifest["segments"])][-keep:]
        needed = set().union(*self._manifests)
        for path in self.folder.glob("*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def load(self, ring: Ring, manifest: dict[str, Any], elsewhere: Path | None = None) -> None:
        """Fill a ring with the rows of a manifest.

        Args:
            ring: an empty one of the same sizes.
            manifest: of `save`.
            elsewhere: a folder that may hold segments which this one lacks; they are linked or copied here.

        Raises:
            TrainingError: a segment is missing or damaged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in manifest["segments"]:
            env, start, stop = (int(part) for part in name.split("-")[:3])
            columns = _decode(self._fetch(name, elsewhere))
            first = max(start, manifest["written"][env] - ring.rows)
            for key, value in columns.items():
                column = ring.columns[key]
                at = torch.arange(first, stop, device=column.device) % ring.rows
                column[env, at] = value[first - start :].to(column.device)
            if stop - start == min(self.rows, ring.rows):
                self._full[env, start] = name
        ring.written, ring.begins = list(manifest["written"]), list(manifest["begins"])
        ring.loaded()
        self._manifests = [set(manifest["segments"])]

    def _fetch(self, name: str, elsewhere: Path | None) -> bytes:
        """The bytes of an intact segment; it is linked or copied here if it is elsewhere."""
        own, places = self.folder / name, [self.folder / name] + ([elsewhere / name] if elsewhere else [])
        for place in places:
            if (data := _intact(place)) is None:
                continue
            if place != own:
                own.unlink(missing_ok=True)  # damaged
                try:
                    os.link(place, own)
                except OSError:  # another file system
                    write_atomically(own, data)
            return data
        damaged = [str(place) for place in places if place.exists()]
        what = f"is damaged in {' and '.join(damaged)}" if damaged else f"is missing in {self.folder}"
        remove = " and ".join(str(place.parents[1]) for place in places)
        raise TrainingError(f"the replay's segment {name} {what}: remove {remove} to train again")

    def _write(self, env: int, start: int, stop: int, columns: dict[str, np.ndarray]) -> str:
        data = _encode(columns)
        name = f"{env:03d}-{start:012d}-{stop:012d}-{hashlib.sha256(data).hexdigest()[:DIGITS]}"
        self.folder.mkdir(parents=True, exist_ok=True)
        if _intact(self.folder / name) is None:
            write_atomically(self.folder / name, data)
        return name


def _rows(ring: Ring, env: int, start: int, stop: int) -> dict[str, np.ndarray]:
    """Copies of rows `start` to `stop` (counted from the start of training) of one environment."""
    at = torch.arange(start, stop) % ring.rows
    return {key: column[env, at.to(column.device)].cpu().numpy() for key, column in ring.columns.items()}


def _encode(columns: dict[str, np.ndarray]) -> bytes:
    """One line of JSON, then each column compressed."""
    parts, about = [], []
    for key, values in columns.items():
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
        change = raw.copy()
        change[1:] ^= raw[:-1]  # most pixels stay as they were
        parts.append(zlib.compress(change.data, 1))
        about.append({"name": key, "dtype": values.dtype.str, "shape": values.shape, "bytes": len(parts[-1])})
    return json.dumps(about).encode() + b"\n" + b"".join(parts)


def _intact(path: Path) -> bytes | None:
    """A segment's bytes; None if it is missing or its digest is not that of its name."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return data if hashlib.sha256(data).hexdigest()[:DIGITS] == path.name.rsplit("-", 1)[-1] else None


def _decode(data: bytes) -> dict[str, Tensor]:
    """The columns of a segment."""
    head, _, rest = data.partition(b"\n")
    columns, at = {}, 0
    for about in json.loads(head):
        shape: Sequence[int] = about["shape"]
        raw = np.frombuffer(zlib.decompress(rest[at : at + about["bytes"]]), np.uint8).reshape(shape[0], -1)
        values = np.bitwise_xor.accumulate(raw, axis=0).view(np.dtype(about["dtype"])).reshape(shape)
        columns[about["name"]] = torch.from_numpy(values)
        at += about["bytes"]
    return columns
