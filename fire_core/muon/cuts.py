"""How a weight divides into matrices, as plain data that an optimizer's group and state_dict can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fire_core.weights.entry import Entry

MuonCut: TypeAlias = tuple[Any, ...]
Cuts: TypeAlias = tuple[MuonCut, ...]
# A cut is a plain tuple, so that it can be hashed, compared, and stored in the state_dict of an optimizer.
FIELDS = ("kind", "rows", "groups", "transposed", "repeats", "heads", "columns")  # what a cut is, as plain data


# One matrix; leading dimensions of size 1, as in position embeddings (1, T, d), count for nothing.
WHOLE: MuonCut = ("matrix", None, 1, False, 1, 1, False)


def cut_of(entry: Entry) -> MuonCut:
    """Return the cut from which `entries_of` makes the entry's matrices again, for any parameter of its shape."""
    return tuple(getattr(entry, field) for field in FIELDS)


def entries_of(parameter: Tensor, cuts: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Return one entry for each block of a parameter that cuts make; without cuts one entry for the whole of it."""
    plain = {"kind": "conv" if parameter.ndim > 3 else "matrix"}
    return [
        Entry("", parameter, "", **options)
        for options in ([dict(zip(FIELDS, cut, strict=True)) for cut in cuts] or [plain])
    ]


def matrices_of(entry: Entry, tensor: Tensor) -> Tensor:
    """Return a contiguous copy (count, d_out, d_in) of an entry's matrices in a tensor of its parameter's shape.

    Of a convolution it is (groups, c_out / groups, c_in / groups * k_h k_w).
    """
    if entry.kind == "conv":
        return torch.unflatten(tensor[entry.where], 0, (entry.groups, -1)).flatten(2).clone()
    if entry.kind == "conv_transpose":
        return torch.unflatten(tensor[:, entry.where], 0, (entry.groups, -1)).transpose(1, 2).flatten(2).clone()
    return entry.view(tensor).reshape(-1, *entry.shape).clone(memory_format=torch.contiguous_format)


def write_matrices(entry: Entry, tensor: Tensor, values: Tensor) -> None:
    """Write matrices, as `matrices_of` gives them, to their places in a tensor."""
    if entry.kind == "conv":
        tensor[entry.where] = values.reshape(-1, *tensor.shape[1:])
    elif entry.kind == "conv_transpose":
        shape = (entry.groups, -1, tensor.shape[0] // entry.groups, *tensor.shape[2:])
        by_input = values.reshape(shape).transpose(1, 2)
        tensor[:, entry.where] = by_input.reshape(tensor.shape[0], -1, *tensor.shape[2:])
    else:
        entry.write_(tensor, values)
