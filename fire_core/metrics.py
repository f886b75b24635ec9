"""Distances to isometry and to old weights, ranks, dormancy, sharpness: what the four theorems of FIRE speak of.

Every function says which definition it follows. Matrices are (..., m, n); half precision is computed in float32.
"""

import torch
from torch import Tensor


def _working(W: Tensor) -> Tensor:
    return W if W.dtype == torch.float64 else W.float()


def dfi(W: Tensor) -> Tensor:
    """Deviation from isometry, ||W^T W - I||_F^2, taken on the smaller side (Han et al., ICLR 2026, arXiv 2602.08040).

    Zero if and only if every singular value is 1: for m >= n the columns are orthonormal, for m < n the rows.

    Args:
        W: (..., m, n).

    Returns:
        (...), at least 0; equals the sum of (sigma^2 - 1)^2 over the min(m, n) singular values.
    """
    W = _working(W)
    gram = W.mT @ W if W.shape[-2] >= W.shape[-1] else W @ W.mT
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return gram.square().sum((-2, -1))


def sfe(A: Tensor, B: Tensor) -> Tensor:
    """Squared Frobenius error ||A - B||_F^2 of each matrix (Han et al., ICLR 2026): how far weights have moved.

    Args:
        A: (..., m, n).
        B: (..., m, n).

    Returns:
        (...).
    """
    return (_working(A) - _working(B)).square().sum((-2, -1))
