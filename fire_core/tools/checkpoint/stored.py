"""One tensor of a file: where its bytes lie, read alone and written back alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class CheckpointError(Exception):
    """A file that cannot be used, or not safely; the message is one line."""


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor of a file.

    Attributes:
        name: in the file; nested dictionaries joined by dots.
        file: that holds it.
        dtype: None for one that torch has not.
        shape: of the tensor.
        stride: in elements.
        offset: of the tensor's first element in the file, in bytes.
    """

    name: str
    file: Path
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        """Whether the numbers are floats that a projection can write (float8 is not)."""
        return self.dtype in FLOATS

    @property
    def bytes(self) -> int:
        """Length of the part of the file from the first to the last element."""
        if self.numel == 0 or self.dtype is None:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    def read(self) -> tuple[Tensor, bytearray]:
        """The tensor, and the buffer that it lies in: change the tensor in place and the buffer is what to write back.

        Raises:
            CheckpointError: the file ends before the tensor does, or torch has no such dtype.
        """
        if self.dtype is None:
            raise CheckpointError(f"{self.name}: torch has no such number format")
        buffer = bytearray(self.bytes)
        with self.file.open("rb") as file:
            file.seek(self.offset)
            if file.readinto(buffer) < len(buffer):
                raise CheckpointError(f"{self.file}: ends within {self.name}")
        numbers = torch.frombuffer(buffer, dtype=self.dtype) if buffer else torch.empty(0, dtype=self.dtype)
        return numbers.as_strided(self.shape, self.stride), buffer
