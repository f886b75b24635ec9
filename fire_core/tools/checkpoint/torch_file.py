"""Files of `torch.save` (.pt, .pth, .bin, .ckpt): what lies where, read without running any code of theirs.

`weights_only=True` always. Beside tensors and plain containers, a few classes that hold nothing but data are let in;
any other is refused by its name.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import struct
import types
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode  # loads a file's shapes alone; it has no public name
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from fire_core.tools.checkpoint.stored import CheckpointError, Stored

CHUNK = 2**24
# What `optimizer.state_dict()` gives, by its keys; the names of files that flatten it.
OPTIMIZER = {"state", "param_groups"}
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum")


def harmless() -> list[Any]:
    """Classes that hold data alone: building one runs no code of the file's."""
    found: list[Any] = [argparse.Namespace, types.SimpleNamespace]
    found += [datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone]
    for name in ("PurePosixPath", "PosixPath", "PureWindowsPath", "WindowsPath", "PurePath", "Path"):
        pure = pathlib.PureWindowsPath if "Windows" in name else pathlib.PurePosixPath
        found += [(pure, f"{module}.{name}") for module in ("pathlib", "pathlib._local")]
    try:
        import numpy as np
    except ImportError:
        return found
    multiarray = getattr(np, "_core", None) or np.core  # numpy 1
    for function in ("scalar", "_reconstruct"):
        value = getattr(multiarray.multiarray, function)
        found += [(value, f"numpy.{core}.multiarray.{function}") for core in ("core", "_core")]
    kinds = {type(np.dtype(code)) for code in (*np.typecodes["All"], "O")}
    return [*found, np.dtype, np.ndarray, *kinds]


def tensors_of(path: Path) -> tuple[list[Stored], list[str]]:
    """The tensors of a file, and the names of an optimizer's, which are left out.

    Raises:
        CheckpointError: no such file, no checkpoint, or one that holds more than data.
    """
    skipped: list[str] = []
    with safe_globals(harmless()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols; what matters ends in an error
        try:
            if not zipfile.is_zipfile(path):  # written before torch 1.6, or by that format's option
                content = torch.load(path, map_location="cpu", weights_only=True)
                return [_whole(path, name, value) for name, value in _flatten(content, skipped)], skipped
            with FakeTensorMode():  # shapes, strides and places, no numbers
                content = torch.load(path, weights_only=True)
            records = _records(path)
            return [_part(path, name, value, records) for name, value in _flatten(content, skipped)], skipped
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except CheckpointError:
            raise
        except Exception as error:  # a broken file can fail in any way
            raise CheckpointError(f"{path}: {_why(path, error)}") from error


def _why(path: Path, error: Exception) -> str:
    try:
        classes = sorted(set(get_unsafe_globals_in_checkpoint(path)))
    except Exception:  # not every file gets so far
        classes = re.findall(r"(?:GLOBAL|class|global) ([\w.]+\.[\w.]+)", str(error))[:1]
    if classes:
        return f"refused: it holds {', '.join(classes)}, and reading more than data could run code"
    return f"no readable checkpoint ({type(error).__name__})"


def _flatten(content: Any, skipped: list[str], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors by dotted names; those of optimizers go to `skipped`."""
    pairs: Iterable[tuple[object, Any]] = ()
    if isinstance(content, Tensor):
        yield prefix, content
    elif isinstance(content, Mapping):
        pairs = content.items()
    elif isinstance(content, (list, tuple)):
        pairs = enumerate(content)
    found = (
        pair for key, value in pairs for pair in _flatten(value, skipped, f"{prefix}.{key}" if prefix else str(key))
    )
    if isinstance(content, Mapping) and set(content) >= OPTIMIZER:
        skipped.extend(name for name, _ in found)
        return
    for name, tensor in found:
        if name.rsplit(".", 1)[-1] in MOMENTS:
            skipped.append(name)
        else:
            yield name, tensor


def _whole(path: Path, name: str, value: Tensor) -> Stored:
    value = value.detach()
    return Stored(name, path, value.dtype, tuple(value.shape), tuple(value.stride()), -1, value)


# ------------------------------------------------------------------------------------------------- inside the archive


def _records(path: Path) -> dict[int, zipfile.ZipInfo]:
    """Where the numbers of each record begin, as the archive itself says."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(_data_offset(file, info))
            if info.filename.endswith("/byteorder") and file.read(info.file_size) != b"little":
                raise CheckpointError(f"{path}: written on a big-endian machine")
        return {_data_offset(file, info): info for info in archive.infolist() if info.compress_type == 0}


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + int(name) + int(extra)


def _part(path: Path, name: str, value: Tensor, records: Mapping[int, zipfile.ZipInfo]) -> Stored:
    if value.layout != torch.strided or value.is_quantized:
        return Stored(name, path, None, tuple(value.shape), (), -1)
    start = value.untyped_storage()._checkpoint_offset
    record = records.get(-1 if start is None else start)
    offset = (start or 0) + int(value.storage_offset()) * value.dtype.itemsize
    stored = Stored(name, path, value.dtype, tuple(value.shape), tuple(value.stride()), offset)
    if stored.numel and (record is None or offset + stored.bytes > (start or 0) + record.file_size):
        raise CheckpointError(f"{path}: no readable checkpoint ({name} lies outside of its record)")
    return stored


def rewrite_checksums(path: Path, changed: list[Stored]) -> None:
    """After the numbers of tensors were changed in place, give their records the right CRC-32 again.

    torch does not look at it, but `unzip` and Python's `zipfile` do.
    """
    records = _records(path)
    starts = {start for start in records for s in changed if start <= s.offset < start + records[start].file_size}
    with zipfile.ZipFile(path) as archive:
        entry, entries = archive.start_dir, archive.infolist()
    with path.open("r+b") as file:
        sums = {records[start].header_offset: _crc(file, start, records[start].file_size) for start in starts}
        for info in entries:
            file.seek(entry)
            fields = struct.unpack("<4s24xHHH12x", file.read(46))
            if info.header_offset in sums and fields[0] == b"PK\x01\x02":
                crc = struct.pack("<I", sums[info.header_offset])
                _put(file, entry + 16, crc)
                _put_beside(file, info, crc)
            entry += 46 + sum(fields[1:])


def _put_beside(file: BinaryIO, info: zipfile.ZipInfo, crc: bytes) -> None:
    """The checksum before the data, or, where a flag says so, after it."""
    if not info.flag_bits & 8:
        _put(file, info.header_offset + 14, crc)
        return
    after = _data_offset(file, info) + info.file_size
    file.seek(after)
    if file.read(4) == b"PK\x07\x08":
        _put(file, after + 4, crc)


def _crc(file: BinaryIO, start: int, size: int) -> int:
    file.seek(start)
    crc = 0
    while size:
        data = file.read(min(CHUNK, size))
        if not data:
            break
        crc, size = zlib.crc32(data, crc), size - len(data)
    return crc


def _put(file: BinaryIO, at: int, data: bytes) -> None:
    file.seek(at)
    file.write(data)
