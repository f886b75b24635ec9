"""Part of the way from a matrix to the isometry: singular values sigma become sigma^(1-t) scale^t, vectors stay.

With W = U S V^T, tall or square, U S^(1-t) V^T is W (W^T W)^(-t/2), so that an eigendecomposition of the small Gram
matrix in float64 is enough, on a GPU too. A Gram matrix squares the singular values, and rounding hides those below
1e-8 of the largest. Therefore ill-conditioned matrices are treated in levels: the first level leaves out the directions
whose singular values lie a factor `RESOLVED` below the largest. W times these directions alone, in float64, is the
matrix of the next level, and its Gram matrix resolves them as well as the first one resolved the others.

Directions that W has lost do not come back: a singular value at the rounding of float64 counts as zero.
"""

import torch
from torch import Tensor

from fire_core.polar.exact import CPU_CHUNK, GPU_CHUNK, rank_tolerance
from fire_core.polar.factor import as_tall
from fire_core.polar.steps import gram

# A level uses the singular values down to this share of its largest. Relative to sigma^2 their eigenvalues are wrong by
# some 1e-16 / RESOLVED^2, which is far below what float32 can store, or near the rounding of float64.
RESOLVED = {torch.float32: 3e-5, torch.float64: 1e-2}
# The rounding of float64. Times the larger side of a matrix it is the size at which an SVD returns a singular value 0.
ROUNDING = 2.3e-16


@torch.no_grad()
def blend(W: Tensor, scale: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Return the matrices with the singular vectors of W and the singular values (sigma / scale)^(1-t).

    This is the blend in units of the scale: times `scale`, its singular values are sigma^(1-t) scale^t. Up to condition
    1e6 they are those of an SVD in float64 to within 1e-5 of the larger of the scale and the result's norm, for float64
    input to within 1e-10.

    Args:
        W: (B, m, n), float32 or float64, finite.
        scale: (B, 1, 1), the isometry's singular values, positive.
        t: how far to go, above 0 and below 1.

    Returns:
        (B, m, n) in W's dtype, and the ranks as `PolarReport` counts them, (B,) int64.
    """
    B, m, n = W.shape
    out = torch.empty(W.shape, dtype=W.dtype, device=W.device)
    ranks = torch.full((B,), min(m, n), dtype=torch.int64, device=W.device)
    source, target = as_tall(W), as_tall(out)
    size = max(1, (CPU_CHUNK if W.device.type == "cpu" else GPU_CHUNK) // (m * n))
    for i in range(0, B, size):
        chunk = slice(i, i + size)
        _blend_chunk(source[chunk], scale[chunk].double(), t, target[chunk], ranks[chunk])
    return out, ranks


def _blend_chunk(W: Tensor, scale: Tensor, t: float, out: Tensor, ranks: Tensor) -> None:
    """Write the blends of matrices W (b, m, n), m >= n, into `out`, and the ranks that are not full into `ranks`."""
    peak = torch.maximum(W.amax((-2, -1), keepdim=True), -W.amin((-2, -1), keepdim=True)).double()
    unit = torch.where(peak > 0, torch.exp2(torch.floor(torch.log2(peak))), 1)  # dividing by a power of two is exact
    factor = (unit / scale) ** (1 - t)  # sigma is computed in multiples of the unit
    b, m, n = W.shape
    rows = m if W.device.type != "cpu" else max(n, CPU_CHUNK // (b * n))  # bounds the memory of copies in float64
    blocks = [slice(i, i + rows) for i in range(0, m, rows)]
    G = gram(W[:, blocks[0]] / unit)
    for block in blocks[1:]:
        G += gram(W[:, block] / unit)
    L, V = torch.linalg.eigh(G)  # eigenvalues ascending
    del G  # frees its memory before the products below
    resolved = (L[:, 0] >= RESOLVED[W.dtype] ** 2 * L[:, -1]) & (peak.flatten() > 0)
    root = torch.where(resolved[:, None], L, 1) ** (-t / 4)
    P = gram((V * root[:, None, :]).mT).mul_(factor / unit)  # V L^(-t/2) V^T, times factor / unit
    for block in blocks:
        out[:, block] = W[:, block].double() @ P
    del P
    for j, is_resolved in enumerate(resolved.tolist()):
        if not is_resolved:
            new, rank = _blend_by_levels(W[j] / unit[j], L[j], V[j], t, RESOLVED[W.dtype], rank_tolerance(W))
            out[j], ranks[j] = new * factor[j], rank


def _blend_by_levels(
    X: Tensor, L: Tensor, V: Tensor, t: float, resolved: float, tolerance: float
) -> tuple[Tensor, int]:
    """Return X (X^T X)^(-t/2) of one matrix (m, n) in float64, m >= n, and its rank; zero directions stay zero.

    Args:
        X: a matrix whose largest entry lies in [1, 2), or a zero matrix.
        L: (n,), the eigenvalues of its Gram matrix, ascending.
        V: (n, n), the eigenvectors.
        t: how far to go.
        resolved: a level uses the singular values down to this share of its largest.
        tolerance: singular values down to this share of the largest of all count for the rank.
    """
    new, rank, Y = torch.zeros_like(X), 0, X @ V
    largest = float(L[-1])
    zero = largest * (ROUNDING * len(X)) ** 2
    while len(L) and float(L[-1]) > zero:
        k = int((max(resolved**2 * float(L[-1]), zero) < L).sum())  # directions of this level
        rest = len(L) - k
        level, later, eigenvalues = Y[:, rest:], Y[:, :rest], L[rest:]
        new += (level * eigenvalues ** (-t / 2)) @ V[:, rest:].mT
        rank += int((eigenvalues > largest * tolerance**2).sum())
        # Rounding has mixed some of this level's directions u, which W maps to far larger vectors, into the later
        # directions v: W maps the mixture to sigma v + error u. As u is known, the error can be measured and taken out.
        mixed_in = (level / eigenvalues).mT @ later
        Y, V = later - level @ mixed_in, V[:, :rest] - V[:, rest:] @ mixed_in
        L, rotation = torch.linalg.eigh(Y.mT @ Y)
        Y, V = Y @ rotation, V @ rotation
    return new, rank
