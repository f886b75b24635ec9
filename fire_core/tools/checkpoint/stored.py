"""One tensor of a file, mapped into memory: its numbers are read when they are used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class CheckpointError(Exception):
    """A file that cannot be used, or not safely; the message is one line."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: the tensor's name in the file; the keys of nested dictionaries are joined by dots.
        file: the file that holds it.
        tensor: its numbers; on the meta device where torch has not their format.
    """

    name: str
    file: Path
    tensor: Tensor

    @property
    def floating(self) -> bool:
        """Return whether the numbers are floats that a projection can write (float8 is not)."""
        return self.tensor.dtype in FLOATS and self.tensor.layout == torch.strided and not self.tensor.is_meta

    @property
    def place(self) -> tuple[int, int]:
        """Return the addresses in memory of its first number and behind its last one."""
        t = self.tensor
        if not t.numel():
            return t.data_ptr(), t.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()
