"""Part of the way from a matrix to the isometry: singular values sigma become sigma^(1-t) scale^t, vectors stay.

With W = U S V^T, tall or square, U S^(1-t) V^T is W (W^T W)^(-t/2), so that an eigendecomposition of the small Gram
matrix in float64 is enough; on a GPU too, where it is the one step that is no product of matrices. A Gram matrix
squares the singular values, and rounding hides those below 1e-8 of the largest. Hence levels: what lies a factor
`RESOLVED` below the largest is left out of the first one, W is multiplied by these directions alone, in float64, and
the Gram matrix of that product shows them as clearly as the first one showed the others.

No direction comes back that W has lost: a singular value at the rounding of float64 is taken for zero.
"""

import torch
from torch import Tensor

from fire_core.polar.exact import CPU_CHUNK, GPU_CHUNK, rank_tolerance
from fire_core.polar.factor import as_tall
from fire_core.polar.steps import gram

# How far below the largest a singular value may lie for its eigenvalue to be used. Relative to sigma^2 the eigenvalue
# is wrong by some 1e-16 / RESOLVED^2: far below what float32 can store, or near the rounding of float64.
RESOLVED = {torch.float32: 3e-5, torch.float64: 1e-2}
ROUNDING = 2.3e-16  # of float64; times the larger side of a matrix it is what an SVD would leave of a zero


@torch.no_grad()
def blend(W: Tensor, scale: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Singular values (sigma / scale)^(1-t) on the singular vectors of W: t of the way, in units of the scale.

    Up to condition 1e6 singular values end within 1e-5 of the largest of the scale and the result's norm, as an SVD in
    float64 has them; in float64 within 1e-10.

    Args:
        W: (B, m, n), float32 or float64, finite.
        scale: (B, 1, 1), the isometry's singular values, positive.
        t: above 0 and below 1.

    Returns:
        (B, m, n) in W's dtype, and the ranks as `PolarReport` counts them, (B,) int64.
    """
    B, m, n = W.shape
    out = torch.empty(W.shape, dtype=W.dtype, device=W.device)
    ranks = torch.full((B,), min(m, n), dtype=torch.int64, device=W.device)
    source, target = as_tall(W), as_tall(out)
    size = max(1, (CPU_CHUNK if W.device.type == "cpu" else GPU_CHUNK) // (m * n))
    for i in range(0, B, size):
        here = slice(i, i + size)
        _blend(source[here], scale[here].double(), t, target[here], ranks[here])
    return out, ranks


def _blend(W: Tensor, scale: Tensor, t: float, out: Tensor, ranks: Tensor) -> None:
    """Write the results of matrices W (b, m, n), m >= n, into `out`, and those ranks that are not full."""
    peak = torch.maximum(W.amax((-2, -1), keepdim=True), -W.amin((-2, -1), keepdim=True)).double()
    unit = torch.where(peak > 0, torch.exp2(torch.floor(torch.log2(peak))), 1)  # a power of two rounds nothing
    factor = (unit / scale) ** (1 - t)  # sigma is computed in multiples of the unit
    b, m, n = W.shape
    rows = m if W.device.type != "cpu" else max(n, CPU_CHUNK // (b * n))  # bounds the memory of copies in float64
    blocks = [slice(i, i + rows) for i in range(0, m, rows)]
    G = gram(W[:, blocks[0]] / unit)
    for block in blocks[1:]:
        G += gram(W[:, block] / unit)
    L, V = torch.linalg.eigh(G)  # ascending
    del G
    resolved = (L[:, 0] >= RESOLVED[W.dtype] ** 2 * L[:, -1]) & (peak.flatten() > 0)
    root = torch.where(resolved[:, None], L, 1) ** (-t / 4)
    P = gram((V * root[:, None, :]).mT).mul_(factor / unit)
    for block in blocks:
        out[:, block] = W[:, block].double() @ P
    del P
    for j, fine in enumerate(resolved.tolist()):
        if not fine:
            new, rank = _by_levels(W[j] / unit[j], L[j], V[j], t, RESOLVED[W.dtype], rank_tolerance(W))
            out[j], ranks[j] = new * factor[j], rank


def _by_levels(X: Tensor, L: Tensor, V: Tensor, t: float, resolved: float, tolerance: float) -> tuple[Tensor, int]:
    """X (X^T X)^(-t/2) of one matrix (m, n) in float64, m >= n, and its rank; zero directions stay zero.

    Args:
        X: its largest entry lies in [1, 2), or all are 0.
        L: (n,), the eigenvalues of its Gram matrix, ascending.
        V: (n, n), the eigenvectors.
        t: how far to go.
        resolved: how far below the largest of a level singular values are used.
        tolerance: how far below the largest of all they count for the rank.
    """
    new, rank, Y = torch.zeros_like(X), 0, X @ V
    top = float(L[-1])
    zero = top * (ROUNDING * len(X)) ** 2
    while len(L) and float(L[-1]) > zero:
        k = int((max(resolved**2 * float(L[-1]), zero) < L).sum())
        rest = len(L) - k
        near, far, large = Y[:, rest:], Y[:, :rest], L[rest:]
        new += (near * large ** (-t / 2)) @ V[:, rest:].mT
        rank += int((large > top * tolerance**2).sum())
        # Rounding has left in the directions to come some of those that are done, which are far larger: W maps the
        # mixture to sigma v + (error) u, and u, which is known, tells the error.
        mixed = (near / large).mT @ far
        Y, V = far - near @ mixed, V[:, :rest] - V[:, rest:] @ mixed
        L, turn = torch.linalg.eigh(Y.mT @ Y)
        Y, V = Y @ turn, V @ turn
    return new, rank
