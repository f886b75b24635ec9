"""The header of a .safetensors file, read without the package of that name: length, JSON, then the numbers."""

from __future__ import annotations

import itertools
import json
import math
import struct
from pathlib import Path
from typing import Any

import torch

from fire_core.tools.checkpoint.stored import CheckpointError, Stored

LONGEST = 100_000_000  # bytes of a header, as the format has it
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip


def tensors_of(path: Path) -> list[Stored]:
    """The tensors of a file, in the order in which they lie.

    Raises:
        CheckpointError: it is no such file, or its header does not fit its length.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LONGEST:
                raise ValueError("the header is too long")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        size = path.stat().st_size - 8 - length
        found = [_stored(path, name, about, 8 + length, size) for name, about in header.items()]
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{path}: no readable checkpoint ({type(error).__name__}: {error})") from error
    found.sort(key=lambda stored: stored.offset)
    for one, other in itertools.pairwise(found):
        if one.offset + one.bytes > other.offset:
            raise CheckpointError(f"{path}: no readable checkpoint ({one.name} and {other.name} overlap)")
    return found


def _stored(path: Path, name: str, about: dict[str, Any], base: int, size: int) -> Stored:
    shape = tuple(int(n) for n in about["shape"])
    start, stop = (int(n) for n in about["data_offsets"])
    dtype = DTYPES.get(about["dtype"])
    if min(shape, default=0) < 0 or not 0 <= start <= stop <= size:
        raise ValueError(f"{name} lies outside of the file")
    if dtype is not None and stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} has not the size of its shape")
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Stored(name, path, dtype, shape, strides, base + start)
