"""What a projection did to a batch of matrices: DfI, SFE and norms, in one pass over pieces that caches hold."""

import math

import torch
from torch import Tensor

from fire_core.polar.factor import CHUNK, as_tall
from fire_core.polar.steps import gram

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
    size = max(1, CHUNK // math.prod(old.shape[1:])) if old.device.type == "cpu" else max(1, len(old))
    for i in range(0, len(old), size):
        here = slice(i, i + size)
        W, W_new, scale, row = old[here], new[here], s[here], out[here]
        row[:, 0], row[:, 3] = _dfi_and_square(W, scale)
        row[:, 1], row[:, 4] = _dfi_and_square(W_new, scale)
        row[:, 2] = torch.sub(W_new, W).square_().sum((-2, -1))


def _dfi_and_square(W: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """DfI of W / s and ||W||_F^2, both (b,), from one Gram matrix, whose trace is the squared norm."""
    G = gram(as_tall(W / s))
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    square = diagonal.sum(-1, dtype=torch.float64) * s.flatten().double().square()
    diagonal.sub_(1)
    return G.square_().sum((-2, -1)), square
