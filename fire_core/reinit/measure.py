"""Measure what a projection did to a batch of matrices (DfI, SFE, norms), in pieces that fit into a CPU's caches."""

import math

import torch
from torch import Tensor

from fire_core.polar.factor import CHUNK, as_tall
from fire_core.polar.steps import dfi_and_square

# The columns of a table with one row for each matrix.
COLUMNS = (
    "dfi_before",
    "dfi_after",
    "sfe",
    "square_before",  # squared Frobenius norm before
    "square_after",  # squared Frobenius norm after
    "square_scale",  # squared scale
    "rank",
    "completed",  # 1 if its null space was filled
    "skipped",  # 1 if it stayed as it was
    "zeros",  # 1 if it is zero and stayed so
    "measuring",  # seconds
)


def pieces(W: Tensor) -> list[slice]:
    """Cut a batch (b, d_out, d_in) into pieces that fit into a CPU's caches; on a GPU it stays in one piece."""
    size = max(1, CHUNK // max(1, math.prod(W.shape[1:]))) if W.device.type == "cpu" else max(1, len(W))
    return [slice(i, i + size) for i in range(0, len(W), size)]


def measure(old: Tensor, new: Tensor, s: Tensor, out: Tensor) -> None:
    """Write the first five of `COLUMNS` for each matrix.

    For float32 weights, sums are taken in float32, in blocks. Norms, SFE and the DfI of a weight that is no isometry
    differ from float64 by some 1e-6 of their size; the DfI of an isometry is wrong by up to 1e-12 n^2, which is the
    rounding of the weights themselves.

    Args:
        old: (b, d_out, d_in), the matrices before.
        new: (b, d_out, d_in), the matrices after.
        s: (b, 1, 1), each matrix's scale; DfI is that of W / s.
        out: (b, len(COLUMNS)), float64, written in place.
    """
    squared_scale = s.flatten().double().square()
    buffer = torch.empty(old.shape, dtype=old.dtype, device=old.device)  # contiguous, whatever the weights' strides are
    for column, W in enumerate((old, new)):
        dfi, square = dfi_and_square(as_tall(torch.div(W, s, out=buffer)))
        out[:, column], out[:, column + 3] = dfi, square * squared_scale
    out[:, 2] = torch.sub(new, old).square_().sum((-2, -1))
