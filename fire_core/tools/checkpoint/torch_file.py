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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode  # loads a file's shapes alone; it has no public name
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from fire_core.tools.checkpoint.stored import CheckpointError, Stored

CHUNK = 2**24
OLD = "one from before torch 1.6 is to be saved anew: torch.save(torch.load(file), file)"
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
    with safe_globals(harmless()), warnings.catch_warnings(), FakeTensorMode():  # shapes and places, no numbers
        warnings.simplefilter("ignore")  # about pickle protocols; what matters ends in an error
        try:
            if not zipfile.is_zipfile(path):
                raise CheckpointError(f"{path}: no readable checkpoint; {OLD}")
            content, records = torch.load(path, weights_only=True), _records(path)
            return [_stored(path, name, value, records) for name, value in _flatten(content, skipped)], skipped
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
    if isinstance(content, Tensor):
        if prefix.rsplit(".", 1)[-1] in MOMENTS:
            skipped.append(prefix)
        else:
            yield prefix, content
        return
    pairs = dict(enumerate(content)) if isinstance(content, list | tuple) else content
    if not isinstance(pairs, Mapping):
        return
    of_optimizer = set(pairs) >= OPTIMIZER
    for key, value in pairs.items():
        for name, tensor in _flatten(value, skipped, f"{prefix}.{key}" if prefix else str(key)):
            if of_optimizer:
                skipped.append(name)
            else:
                yield name, tensor


# ------------------------------------------------------------------------------------------------- inside the archive


def _records(path: Path) -> dict[int, int]:
    """Where the numbers of each record begin, and their size in bytes, as the archive itself says."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        infos = {_data_offset(file, info): info for info in archive.infolist() if info.compress_type == 0}
        for offset, info in infos.items():
            file.seek(offset)
            if info.filename.endswith("/byteorder") and file.read(info.file_size) != b"little":
                raise CheckpointError(f"{path}: written on a big-endian machine")
    return {offset: info.file_size for offset, info in infos.items()}


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + int(name) + int(extra)


def _stored(path: Path, name: str, value: Tensor, records: Mapping[int, int]) -> Stored:
    if value.layout != torch.strided or value.is_quantized:
        return Stored(name, path, None, tuple(value.shape), (), -1)
    start = value.untyped_storage()._checkpoint_offset or 0
    offset = start + int(value.storage_offset()) * value.dtype.itemsize
    stored = Stored(name, path, value.dtype, tuple(value.shape), tuple(value.stride()), offset)
    if stored.numel and offset + stored.bytes > start + records.get(start, 0):
        raise CheckpointError(f"{path}: no readable checkpoint ({name} lies outside of its record)")
    return stored


def rewrite_checksums(path: Path, changed: list[Stored]) -> None:
    """After the numbers of tensors were changed in place, give their records the right CRC-32 again.

    torch does not look at it, but `unzip` and Python's `zipfile` do.
    """
    with zipfile.ZipFile(path) as archive:
        entry, infos = archive.start_dir, archive.infolist()
    with path.open("r+b") as file:
        for info in infos:
            start, end = (offset := _data_offset(file, info)), offset + info.file_size
            if any(start <= stored.offset < end for stored in changed):
                crc, position = 0, start
                file.seek(start)
                while position < end and (data := file.read(min(CHUNK, end - position))):
                    crc, position = zlib.crc32(data, crc), position + len(data)
                file.seek(end)
                described = info.flag_bits & 8 and file.read(4) == b"PK\x07\x08"  # behind the numbers, not before
                for place in (entry + 16, end + 4 if described else info.header_offset + 14):
                    file.seek(place)
                    file.write(struct.pack("<I", crc))
            file.seek(entry)
            entry += 46 + sum(struct.unpack("<28xHHH12x", file.read(46)))  # to the next one's in the directory
