"""Polar factors of batches of matrices: the projection at the heart of FIRE.

The nearest isometry to W = U S V^T, in the Frobenius norm, is its polar factor U V^T. FIRE (Han et al.,
ICLR 2026, arXiv 2602.08040) approximates it by a fixed number of cubic Newton-Schulz steps; `exact` computes it.
This module knows tensors (..., m, n), no nn.Module, and never scales its result.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NORM_INITS = ("frobenius", "spectral", "power", "schatten4")
SOLVERS = ("newton_schulz", "exact", "muon")


class NonFiniteError(ValueError):
    """NaN or Inf in the input. `indices` are the flat positions of the bad matrices in the batch."""

    def __init__(self, indices: list[int]) -> None:
        super().__init__(f"NaN or Inf in matrices {indices} of the batch")
        self.indices = indices


@dataclass(frozen=True)
class PolarReport:
    """What `polar` did. `rank` and `completed` have the batch shape of the input; None where not computed.

    `iterations` counts Newton-Schulz or Muon steps (0 for a direct solve).
    """

    solver: str
    iterations: int
    rank: Tensor | None = None  # (...,) int64: singular values above the tolerance of `exact`
    completed: Tensor | None = None  # (...,) bool: the null space was filled from init or a seeded Gaussian


def _working_dtype(W: Tensor) -> torch.dtype:
    return W.dtype if W.dtype == torch.float64 else torch.float32


def _fro(X: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(X, keepdim=True)
    return norm


def _start_norm(X: Tensor, norm_init: str) -> Tensor:
    """An upper bound on the largest singular value of X (B, m, n), m >= n, as (B, 1, 1)."""
    if norm_init == "frobenius":
        return _fro(X)
    G = X.mT @ X
    if norm_init == "schatten4":
        return _fro(G).sqrt()
    if norm_init == "spectral":
        X64 = X.double()
        top: Tensor = torch.linalg.eigvalsh(X64.mT @ X64)[:, -1]
        return top.clamp_min(0).sqrt().to(X.dtype)[:, None, None]
    # Squaring the Gram matrix j times gives the Schatten norm of order 2^(j+2): an upper bound on the largest
    # singular value whatever the matrix, at most n^(1/16) above it for j = 2.
    size = _fro(G)
    bound = size.sqrt()
    for j in range(2):
        G = G / torch.where(size > 0, size, 1)
        G = G @ G
        size = _fro(G)
        bound = bound * size ** (0.5 ** (j + 2))
    return bound


@torch.no_grad()
def newton_schulz(
    W: Tensor, iterations: int = 10, norm_init: str = "frobenius", tol: float | None = None
) -> Tensor:
    """Cubic Newton-Schulz steps X <- 1.5 X - 0.5 X X^T X from X0 = W / norm, as the paper lists them."""
    if norm_init not in NORM_INITS:
        raise ValueError(f"norm_init={norm_init!r}: expected one of {NORM_INITS}")
    X = W.to(_working_dtype(W))
    if W.numel() == 0 or iterations < 0:
        return W.clone()
    X = X.reshape(-1, *W.shape[-2:])
    wide = W.shape[-1] > W.shape[-2]
    if wide:
        X = X.mT
    peak = X.abs().amax(dim=(-2, -1), keepdim=True)
    X = X / torch.where(peak > 0, peak, 1)  # squares of entries below 1e-19 underflow in float32
    norm = _start_norm(X, norm_init)
    X = X / torch.where(norm > 0, norm, 1)
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    for _ in range(iterations):
        G = X.mT @ X
        if tol is not None and bool(((G - eye).square().sum((-2, -1)) <= tol).all()):
            break
        X = torch.baddbmm(X, X, G, beta=1.5, alpha=-0.5)
    return (X.mT if wide else X).reshape(W.shape).to(W.dtype)


def polar_factor(
    W: Tensor,
    solver: str = "exact",
    *,
    iterations: int = 10,
    norm_init: str = "frobenius",
    tol: float | None = None,
    init: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """`polar` without the report."""
    return polar(W, solver, iterations=iterations, norm_init=norm_init, tol=tol, init=init, seed=seed)[0]


@torch.no_grad()
def polar(
    W: Tensor,
    solver: str = "exact",
    *,
    iterations: int = 10,
    norm_init: str = "frobenius",
    tol: float | None = None,
    init: Tensor | None = None,
    seed: int = 0,
) -> tuple[Tensor, PolarReport]:
    """Polar factors of a batch (..., m, n), same shape and dtype, and what was done."""
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r}: expected one of {SOLVERS}")
    bad = (~torch.isfinite(W)).flatten(-2).any(-1).flatten()
    if bad.any():
        raise NonFiniteError(bad.nonzero().flatten().tolist())
    if solver == "newton_schulz":
        return newton_schulz(W, iterations, norm_init, tol), PolarReport(solver, iterations)
    if solver == "muon":
        return _muon(W, iterations), PolarReport(solver, iterations)
    batch = W.shape[:-2]
    rank = torch.zeros(batch.numel(), dtype=torch.int64, device=W.device)
    if W.numel() == 0:
        return W.clone(), PolarReport(solver, 0, rank.reshape(batch), rank.reshape(batch).bool())
    wide = W.shape[-1] > W.shape[-2]
    flat = W.reshape(-1, *W.shape[-2:])
    flat = flat.mT if wide else flat
    starts = None if init is None else init.reshape(-1, *W.shape[-2:])
    starts = starts.mT if starts is not None and wide else starts
    out = torch.empty_like(flat)
    for b, M in enumerate(flat):
        X, r = _svd_polar(M.double(), None if starts is None else starts[b].double(), seed)
        out[b] = X.to(W.dtype)
        rank[b] = r
    out = out.mT if wide else out
    completed = rank < min(W.shape[-2:])
    return out.reshape(W.shape), PolarReport(solver, 0, rank.reshape(batch), completed.reshape(batch))


def _svd_polar(W: Tensor, init: Tensor | None, seed: int) -> tuple[Tensor, int]:
    """Polar factor of one W (m, n), m >= n, in float64, its null space filled; and the rank."""
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    floor = 2 * torch.finfo(torch.float32).eps * S[0]
    rank = int((S > floor).sum())
    X = U[:, :rank] @ Vh[:rank]
    sources = [] if init is None else [init]
    generator = torch.Generator().manual_seed(seed)
    sources.append(torch.randn(W.shape, generator=generator, dtype=torch.float64).to(W.device))
    left, null = U[:, :rank], Vh[rank:].mT  # (m, r), (n, n - r)
    for source in sources:
        if null.shape[1] == 0:
            break
        Z = source @ null  # (m, k): what the source does to the directions that W lost ...
        for _ in range(2):
            Z = Z - left @ (left.mT @ Z)  # ... outside what W reaches (twice: once leaves rounding)
        u, s, vh = torch.linalg.svd(Z, full_matrices=False)
        k = int((s > 1e-6 * torch.linalg.matrix_norm(source)).sum())
        X = X + u[:, :k] @ (vh[:k] @ null.mT)
        left = torch.cat([left, u[:, :k]], dim=1)
        null = null @ vh[k:].mT
    return X, rank


def _muon(W: Tensor, iterations: int) -> Tensor:
    """The quintic of Muon (Jordan et al., 2024) from W / ||W||_F: fast near 0, but it never settles at 1."""
    wide = W.shape[-1] > W.shape[-2]
    X = W.to(_working_dtype(W))
    X = X.mT if wide else X
    norm = _fro(X)
    X = X / torch.where(norm > 0, norm, 1)
    for _ in range(iterations):
        G = X.mT @ X
        X = 3.4445 * X + X @ (-4.7750 * G + 2.0315 * G @ G)
    return (X.mT if wide else X).to(W.dtype).reshape(W.shape)
