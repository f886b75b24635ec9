"""The header of a .safetensors file, read without the package of that name: length, JSON, then the numbers."""

from __future__ import annotations

import json
import math
import mmap
import struct
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fire_core.tools.checkpoint.stored import CheckpointError, StoredTensor

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip


def tensors_of(path: Path, writable: bool = False) -> list[StoredTensor]:
    """Return the tensors of a file, in the order in which they lie in it.

    Args:
        path: the file, which is mapped into memory.
        writable: what is written to the tensors is written to the file.

    Raises:
        CheckpointError: it is no such file, or its header does not fit its length.
    """
    try:
        with path.open("r+b" if writable else "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda item: int(item[1]["data_offsets"][0]))
        return [StoredTensor(name, path, _mapped_tensor(name, about, data, 8 + length)) for name, about in entries]
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{path}: no readable checkpoint ({type(error).__name__}: {error})") from error


def _mapped_tensor(name: str, about: dict[str, Any], data: mmap.mmap, base: int) -> Tensor:
    """Return one tensor of a file, whose numbers stay in the mapped file.

    Args:
        name: of the tensor, for messages.
        about: its `shape`, `dtype` and `data_offsets` in the file's header.
        data: the whole file.
        base: index of the first byte behind the header; the offsets count from there.

    Returns:
        The tensor; on the meta device with dtype uint8 if torch has no such number format.

    Raises:
        KeyError, TypeError, ValueError: the entry is not complete, or does not fit the file.
    """
    shape = [int(n) for n in about["shape"]]
    start, stop = (base + int(n) for n in about["data_offsets"])
    dtype = DTYPES.get(about["dtype"])
    if min(shape, default=0) < 0 or not base <= start <= stop <= len(data):
        raise ValueError(f"{name} lies outside of the file")
    if dtype is None:
        return torch.empty(shape, dtype=torch.uint8, device="meta")
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} has not the size of its shape")
    if start == stop:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mapping cannot be written to
        return torch.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=start).view(shape)
