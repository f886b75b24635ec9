"""What a projection did to a batch of matrices: DfI, SFE and norms, in one pass over pieces that caches hold."""

import math

import torch
from torch import Tensor

from fire_core.polar.factor import CHUNK, as_tall
from fire_core.polar.steps import dfi_and_square

COLUMNS = (
    "dfi_before",
    "dfi_after",
    "sfe",
    "square_before",  # squared Frobenius norms
    "square_after",
    "square_scale",
    "rank",
    "completed",
    "skipped",
    "zeros",
    "measuring",  # seconds
)


def pieces(W: Tensor) -> list[slice]:
    """The batch (b, d_out, d_in) in pieces that a CPU's caches hold; whole on a GPU."""
    size = max(1, CHUNK // max(1, math.prod(W.shape[1:]))) if W.device.type == "cpu" else max(1, len(W))
    return [slice(i, i + size) for i in range(0, len(W), size)]


def measure(old: Tensor, new: Tensor, s: Tensor, out: Tensor) -> None:
    """Write the first five of `COLUMNS` for each matrix.

    Sums are of float32 for float32 weights, in blocks: of the norms, SFE and the DfI of a weight that is no isometry,
    some 1e-6 is lost against float64; the DfI of an isometry is wrong by up to 1e-12 n^2, the rounding of the weights
    themselves.

    Args:
        old: (b, d_out, d_in), before.
        new: (b, d_out, d_in), after.
        s: (b, 1, 1), each matrix's scale; DfI is that of W / s.
        out: (b, len(COLUMNS)), float64.
    """
    squared_scale = s.flatten().double().square()
    room = torch.empty(old.shape, dtype=old.dtype, device=old.device)  # in order of memory, whatever the weights' is
    for first, W in enumerate((old, new)):
        dfi, square = dfi_and_square(as_tall(torch.div(W, s, out=room)))
        out[:, first], out[:, first + 3] = dfi, square * squared_scale
    out[:, 2] = torch.sub(new, old).square_().sum((-2, -1))
