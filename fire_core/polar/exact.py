"""The exact polar factor of a batch, to working precision, by the cheapest route that keeps the guarantee.

Every route ends in singular values within 2e-6 of 1 in float32 (rounding level in float64), for condition numbers up
to 1e6. Directions along small singular values are the hard part: a float32 product disturbs the polar factor by
about 6e-8 times the condition number, so the condition number is brought down in float64 first.

- square or little taller, CPU: weighted Halley steps X (a I + b X^T X) (I + c X^T X)^-1, which take condition number k
  to about k^(1/3) / 1.6, the first in float64. Three of them settle condition 1e5, four condition 3e6.
- tall, CPU: W (W^T W)^(-1/2) by an eigendecomposition of the small Gram matrix in float64.
- GPU: minimax steps alone, in float64 (which data-centre GPUs multiply as fast as float32).
- matrices that do not converge on these routes, rank-deficient ones and, on a CPU, those in float64: QR and SVD in
  float64, one by one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fire_core.polar.steps import (
    PAPER,
    Step,
    fro,
    gram,
    gram_dfi,
    iterate,
    minimax_steps,
    prepare,
    take,
    upper_bound,
    working_dtype,
)

CPU_CHUNK, GPU_CHUNK = 2**18, 2**26  # entries handled at once: bounds the memory beyond input and output
SETTLED_DFI = 2e-6  # a DfI below this before the paper's step is below 1e-11 after it (the step squares it)
TALL_RATIO = 3  # from this many rows for each column on, eigenvectors of the Gram matrix are faster than steps on X
TALL_CONDITION = 1e5  # beyond it the Gram matrix has lost the small singular values, even in float64
# The smallest singular values, relative to the largest, for which the first and the second try surely converge.
LOW, LOWEST = 1e-5, 6.5e-7
FLOAT32_CONDITION = 100  # a condition number of I + c X^T X up to which float32 is precise enough
NEAR_DFI = 2e-4  # a DfI below this before `_polish` is below 1e-11 after it (it cubes the errors)
GPU_LOW = 1e-4  # the smallest relative singular value for which the first pass on a GPU converges


def launch(W: Tensor, out: Tensor) -> Tensor:
    """Write the polar factors of W into `out`; on a GPU without waiting for the device.

    Args:
        W: (B, m, n), m >= n; on a CPU it must be finite.
        out: (B, m, n), overwritten.

    Returns:
        (B,) bool, which matrices have converged; the others go to `repair`.
    """
    B, m, n = W.shape
    cpu = W.device.type == "cpu"
    if cpu and W.dtype == torch.float64:
        return torch.zeros(B, dtype=torch.bool, device="cpu")
    converged = torch.ones(B, dtype=torch.bool, device=W.device)
    size = max(1, (CPU_CHUNK if cpu else GPU_CHUNK) // (m * n))
    solve: Callable[[Tensor], tuple[Tensor, Tensor]]
    if not cpu:
        solve = matmul_only
    elif m < TALL_RATIO * n:
        solve = _halley
    else:
        solve = _tall
    for i in range(0, B, size):
        chunk = prepare(W[i : i + size])
        X, good = solve(chunk)
        if cpu and not good.all():
            X[~good], good[~good] = _halley(chunk[~good], LOWEST)
        out[i : i + size], converged[i : i + size] = X, good
    return converged


def rank_tolerance(W: Tensor) -> float:
    """Return the share of the largest singular value of W (..., m, n) above which others count for its rank.

    A product of float32 factors leaves 3e-8 to 1e-7 of the norm in its null space; condition 1e6 is full rank.
    """
    return max(W.shape[-2:]) * 2.3e-16 if W.dtype == torch.float64 else 2.4e-7


def repair(W: Tensor, init: Tensor | None, seed: int) -> tuple[Tensor, int]:
    """Return the polar factor of one matrix by SVD in float64, with its null space filled from `init`, and the rank.

    With U_r, V_r the singular vectors of the rank r that W has, the result is U_r V_r^T + polar(Z), where
    Z = (I - U_r U_r^T) init (I - V_r V_r^T). That does not depend on which basis of the null space LAPACK returns.
    Where Z is rank-deficient too (no init, or the same dead rows), a seeded Gaussian takes its place.

    Args:
        W: (m, n), m >= n.
        init: (m, n), or None for the Gaussian alone.
        seed: seed of the Gaussian.
    """
    if W.device.type != "cpu":
        X, converged = matmul_only(prepare(W[None]), low=1e-5)
        if bool(converged):
            return X[0].to(W.dtype), W.shape[1]
    W64 = prepare(W[None])[0].double()
    Q, R = torch.linalg.qr(W64) if W.shape[0] > W.shape[1] else (None, W64)
    U, S, Vh = torch.linalg.svd(R, full_matrices=False)
    U = U if Q is None else Q @ U
    smallest = rank_tolerance(W) * S[0]
    rank = int((smallest < S).sum())
    X = U[:, :rank] @ Vh[:rank]
    image, null = U[:, :rank], Vh[rank:].mT  # (m, r), (n, n - r): bases of the image and of the null space
    generator = torch.Generator().manual_seed(seed)
    source = init
    while null.shape[1] > 0:
        if source is None:
            source = torch.randn(W.shape, generator=generator, dtype=torch.float64, device="cpu")
        filling = source.to(W64)
        Z = filling @ null  # (m, k): the source on the null space, ...
        for _ in range(2):
            Z = Z - image @ (image.mT @ Z)  # ... without its part in the image (twice, as once leaves rounding)
        u, s, vh = torch.linalg.svd(Z, full_matrices=False)
        k = int((s > 1e-7 * fro(filling).squeeze()).sum())
        X = X + u[:, :k] @ (vh[:k] @ null.mT)
        image = torch.cat([image, u[:, :k]], dim=1)
        null = null @ vh[k:].mT
        source = None  # a Gaussian fills what is still missing
    return X.to(W.dtype), rank


def halley_weights(low: float, n: int) -> list[Step]:
    """Return the weights (a, b, c) of steps x (a + b x^2) / (1 + c x^2) that take singular values in [low, 1] near 1.

    Each step's weights make its smallest result as large as possible while its largest is 1 (Nakatsukasa, Bai and Gygi,
    SIAM J. Matrix Anal. Appl. 31(5), 2010). The steps end when n such singular values give a DfI below `NEAR_DFI`.
    """
    weights = []
    while 1 - low > (1e-4 / n) ** 0.5:
        d = (4 * (1 - low**2) / low**4) ** (1 / 3)
        a = (1 + d) ** 0.5 + 0.5 * (8 - 4 * d + 8 * (2 - low**2) / (low**2 * (1 + d) ** 0.5)) ** 0.5
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        weights.append((a, b, c))
        low *= (a + b * low**2) / (1 + c * low**2)
    return weights


def _halley(W: Tensor, low: float = LOW) -> tuple[Tensor, Tensor]:
    """Return the polar factors of W (B, m, n) by weighted Halley steps, and which matrices have converged, (B,) bool.

    Matrices whose singular values are all at least `low` times the largest converge; those with one below 0.38 times
    that do not. The largest singular value is estimated to 10 % only: those that start above 1 come back to 1 like the
    others.
    """
    X = W.double()
    G = gram(X)
    largest = 1.1 * _largest_eigenvalues(G, 8).sqrt()[:, None, None]
    unit = torch.where(largest > 0, largest, 1)
    steps = halley_weights(low, X.shape[-1])
    for number, (a, b, c) in enumerate(steps, 1):
        # with x in multiples of the unit, x (a + b x^2) / (1 + c x^2) is (b / c) x + (a - b / c) x / (1 + c x^2)
        scale, weight = (a - b / c) / unit, c / unit.square()
        X = _quotient(X, G, weight, scale).add_(X.mul_(b / (c * unit)))
        if number == len(steps) or steps[number][2] < FLOAT32_CONDITION:  # the rest can be done in float32
            X, unit = X.float(), unit.float()
        G, unit = gram(X), torch.ones_like(unit)
    X, dfi = _polish(X, G)
    return X, dfi <= NEAR_DFI  # false for NaN


def _polish(X: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Return X (15 I - 10 G + 3 G^2) / 8, a step that cubes the errors, and the DfI before it, (B,).

    It is computed as X + X (E / 2 + 3 E^2 / 8) with E = I - G, so that hardly anything but the result is rounded.

    Args:
        X: (B, m, n).
        G: (B, n, n), the Gram matrices of X, which are overwritten.
    """
    E = G.neg_()
    E.diagonal(dim1=-2, dim2=-1).add_(1)
    N = gram(E)  # E is symmetric: its Gram matrix is its square
    dfi = N.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.baddbmm(X, X, N.mul_(3 / 8).add_(E, alpha=0.5)), dfi


def _quotient(X: Tensor, G: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return scale X (I + weight G)^-1 for X (B, m, n) and its Gram matrices G, which are overwritten.

    The transposes are there because LAPACK stores matrices by columns. From n = 128 on LU is faster than Cholesky,
    after which torch runs a slow `tril`. The matrices are solved one at a time, because with two threads or more torch
    2.15 (MKL) mixes up the pivots of a batch of n >= 160 and returns wrong results silently.
    """
    Z = G.mul_(weight / scale)
    Z.diagonal(dim1=-2, dim2=-1).add_(1 / scale[..., 0])
    if X.shape[-1] < 128:
        return torch.cholesky_solve(X.mT, torch.linalg.cholesky_ex(Z.mT)[0]).mT
    Y, info = torch.empty_like(X), torch.empty((), dtype=torch.int32, device=Z.device)
    for x, z, y in zip(X, Z, Y, strict=True):
        torch.linalg.solve_ex(z.mT, x.mT, out=(y.mT, info))
    return Y


def _settle(X: Tensor, steps: list[Step]) -> tuple[Tensor, Tensor]:
    """Take the `steps` and one step of the paper's; return the result and which matrices have converged, (B,) bool."""
    X, _ = iterate(X, steps)
    G = gram(X)
    converged = gram_dfi(G) <= SETTLED_DFI  # false for NaN
    X = take(X, G, PAPER, out=torch.empty_like(X))
    if X.dtype == torch.float64:
        X, _ = iterate(X, [PAPER] * 2)  # the errors go from 1e-3 to 1e-6, to 1e-12 and to rounding
    return X, converged


def _largest_eigenvalues(G: Tensor, rounds: int) -> Tensor:
    """Estimate the largest eigenvalue of each Gram matrix from below by power iteration, (B, n, n) -> (B,).

    The vectors are rows, as torch multiplies a batch by column vectors ten times more slowly.
    """
    n = G.shape[-1]
    v = torch.cos(torch.arange(n, dtype=G.dtype, device=G.device).square_() + 1).expand(len(G), 1, n)
    for _ in range(rounds):
        v = v @ G
        size = fro(v)
        v = v / torch.where(size > 0, size, 1)
    return size.flatten()


def _tall(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return W (W^T W)^(-1/2) of tall W (B, m, n) by eigendecompositions, and which have converged, (B,) bool."""
    B, m, n = W.shape
    rows = max(n, CPU_CHUNK // (B * n))
    G = W.new_zeros(B, n, n, dtype=torch.float64)
    for i in range(0, m, rows):
        G += gram(W[:, i : i + rows].double())
    L, V = torch.linalg.eigh(G)
    squared_condition = L[:, -1] / L[:, 0]
    converged = (squared_condition > 0) & (squared_condition < TALL_CONDITION**2)
    L = torch.where(converged[:, None], L, 1.0)
    P = (V * L.rsqrt()[:, None, :]) @ V.mT
    X = torch.empty(B, m, n, dtype=torch.float32, device=W.device)
    for i in range(0, m, rows):
        X[:, i : i + rows] = W[:, i : i + rows].double() @ P
    # Rounding of the Gram matrix leaves errors of 1e-16 * squared_condition, which one cubic step more removes.
    inexact = converged & (squared_condition > 1e6)
    if inexact.any():
        X, settled = _settle(X, [])
        converged &= settled
    return X, converged


def matmul_only(W: Tensor, low: float = GPU_LOW) -> tuple[Tensor, Tensor]:
    """Return the polar factors of W (B, m, n) by matrix products in float64 alone, and which have converged, (B,) bool.

    Matrices converge if all their singular values are at least about `low` times the largest.
    """
    X = W.double()
    bound = upper_bound(X, 2)
    X, converged = _settle(X / torch.where(bound > 0, bound, 1), minimax_steps(low))
    return X.to(working_dtype(W)), converged
