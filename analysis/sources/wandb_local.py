"""Read wandb runs on disk, synced or not: the `.wandb` file in `wandb/run-*` and `wandb/offline-run-*`.

The file is a LevelDB log: after 7 bytes of header, blocks of 32 KiB that hold pieces of records, each with a checksum;
a record is a `wandb_internal_pb2.Record`. What wandb wrote before it was killed can be read up to the incomplete piece.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from analysis.boundaries import place
from analysis.runs import BadRun, LeftOut, Run
from analysis.sources.folders import table

HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
BLOCK = 32768
PIECE = struct.Struct("<IHB")  # checksum, length, type
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read(root: Path) -> Iterator[Run | LeftOut]:
    """Yield the wandb runs at any depth below `root`. The files of a resumed run are joined by its id."""
    by_id: dict[str, list[Path]] = {}
    for file in sorted(root.rglob("*.wandb")):
        by_id.setdefault(file.stem.removeprefix("run-"), []).append(file)
    for files in by_id.values():
        try:
            yield read_run(files)
        except BadRun as reason:
            yield LeftOut(str(files[0]), str(reason))
        except OSError as error:
            yield LeftOut(str(files[0]), f"unreadable: {error.strerror or error}")
        except Exception as error:  # whatever is wrong with one run, the others are read
            yield LeftOut(str(files[0]), f"corrupt: {type(error).__name__}: {error}")


def read_run(files: list[Path]) -> Run:
    """Read one run from its files, which are ordered from the oldest.

    Raises:
        BadRun: the files hold no run of this project.
    """
    from wandb.proto import wandb_internal_pb2  # imported late: it takes a second, and other sources do not need it

    config: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    name, has_summary, finished = files[0].stem, False, False
    for file in files:
        finished = False  # only the last file can have the run's end
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # it is generated, without a stub
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name = record.run.display_name or record.run.run_id
                config |= items(record.run.config.update)
            elif kind == "config":
                config |= items(record.config.update)
            elif kind == "history":
                rows.append(items(record.history.item))
            elif kind == "summary":
                has_summary |= any(key.startswith("final/") for key in items(record.summary.update))
            elif kind == "exit":
                finished = has_summary and record.exit.exit_code == 0
    config.pop("_wandb", None)
    return run_of(name, str(files[0]), config, rows, finished)


def run_of(name: str, source: str, config: dict[str, Any], rows: Iterable[dict[str, Any]], finished: bool) -> Run:
    """Return a run from the rows that it logged.

    A resumed run logs the rows after its checkpoint again; of two rows at the same place the later one counts.

    Raises:
        BadRun: the run logged nothing, or is no run of this project.
    """
    row_at_place = {}
    for row in rows:
        row.setdefault("step", row.get("_step"))
        row_at_place[place(row)] = row
    if not row_at_place:
        raise BadRun("empty: no history")
    meta = {"config": config, "environment": {}, "finished": finished}
    return Run.of(name, source, meta, table([row_at_place[at] for at in sorted(row_at_place)]))


def records(raw: bytes) -> Iterator[bytes]:
    """Yield the records of a `.wandb` file, up to its end or to where it was cut off.

    Raises:
        BadRun: the file is no `.wandb` file, or a piece before the last is damaged.
    """
    if not raw:
        raise BadRun("empty file")
    if raw[:7] != HEADER:
        raise BadRun("corrupt: not a .wandb file")
    at, record = len(HEADER), b""
    while at + PIECE.size <= len(raw):
        if BLOCK - at % BLOCK < PIECE.size:  # too little left in the block for a piece: padding
            at += BLOCK - at % BLOCK
            continue
        checksum, length, kind = PIECE.unpack_from(raw, at)
        data = raw[at + PIECE.size : at + PIECE.size + length]
        at += PIECE.size + length
        if at > len(raw):
            return
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            raise BadRun(f"corrupt: checksum wrong at byte {at - length}")
        record = data if kind in (FULL, FIRST) else record + data
        if kind in (FULL, LAST):
            yield record


def items(pairs: Any) -> dict[str, Any]:
    """Return protobuf key/value items as a dict; the parts of a nested key are joined by dots."""
    return {pair.key or ".".join(pair.nested_key): json.loads(pair.value_json) for pair in pairs}
