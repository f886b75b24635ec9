"""Cubic steps X <- a X + b X X^T X on batches (B, m, n), m >= n: what every solver of `polar` is made of."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

PAPER = (1.5, -0.5)  # the Newton-Schulz step: sends 1 to 1 with slope 0, every sigma in (0, sqrt 3) towards 1


def minimax_steps(low: float) -> list[tuple[float, float]]:
    """The shortest run of cubic steps that takes all singular values from [low, 1] to 1 - 1e-4 or closer.

    Among the cubics a x + b x^3 with maximum 1 on [low, 1], the one whose minimum there is largest equioscillates: it
    has its maximum 1 inside and equal values at both ends. That Chebyshev condition is solved by hand:
    p(x) = c x (3 - c^2 x^2) / 2 with c^2 = 3 / (1 + low + low^2). Tiny singular values grow by up to 2.6 a step,
    against 1.5 with the fixed step of the paper.

    Args:
        low: lower bound on the singular values, in (0, 1].

    Returns:
        The coefficients (a, b) of each step.
    """
    steps = []
    while low < 1 - 1e-4:
        c = math.sqrt(3 / (1 + low + low * low))
        steps.append((1.5 * c, -0.5 * c**3))
        low = 0.5 * c * low * (3 - (c * low) ** 2)
    return steps


def gram(X: Tensor) -> Tensor:
    """X^T X, (B, m, n) -> (B, n, n).

    BLAS would compute half of a symmetric product (syrk), but torch has no name for it: on a CPU the upper block
    triangle is computed and mirrored, 5/8 of the arithmetic.
    """
    n = X.shape[-1]
    if X.device.type != "cpu" or n < 128 or torch.compiler.is_compiling():
        return X.mT @ X
    G = X.new_empty(X.shape[0], n, n)
    h = -(-n // 4)
    for i in range(0, n, h):
        torch.bmm(X[:, :, i : i + h].mT, X[:, :, i:], out=G[:, i : i + h, i:])
    for i in range(h, n, h):
        G[:, i : i + h, :i] = G[:, :i, i : i + h].mT
    return G


def gram_dfi(G: Tensor) -> Tensor:
    """||G - I||_F^2 of each Gram matrix, (B, n, n) -> (B,)."""
    E = G.clone()
    E.diagonal(dim1=-2, dim2=-1).sub_(1)
    return E.square().sum((-2, -1))


def prepare(W: Tensor) -> Tensor:
    """A contiguous copy of W (B, m, n) in float32, or float64 if W is, scaled by a power of two.

    The largest entry of each matrix comes to lie in [1, 2): without that, squares of entries below 1e-19 underflow and
    above 1e19 overflow in float32. A power of two rounds nothing. Zero matrices stay; NaN and Inf become NaN.
    """
    X = torch.empty(W.shape, dtype=working_dtype(W), device=W.device).copy_(W)
    peak: Tensor = torch.linalg.vector_norm(X, float("inf"), dim=(-2, -1), keepdim=True)
    power = torch.exp2(torch.floor(torch.log2(peak)))
    return X.div_(torch.where(peak > 0, power, 1))


def working_dtype(W: Tensor) -> torch.dtype:
    return W.dtype if W.dtype == torch.float64 else torch.float32


def fro(X: Tensor) -> Tensor:
    """Frobenius norms, (B, m, n) -> (B, 1, 1)."""
    norm: Tensor = torch.linalg.matrix_norm(X, keepdim=True)
    return norm


def upper_bound(X: Tensor, squarings: int) -> Tensor:
    """A bound on the largest singular value that holds for every matrix, (B, m, n) -> (B, 1, 1).

    The Schatten norm of order p = 4 * 2^squarings, from ||(X^T X)^(p/4)||_F: at most n^(1/p) too large.
    """
    G = gram(X)
    size = fro(G)
    bound = size.sqrt()
    for j in range(squarings):
        G = G / torch.where(size > 0, size, 1)  # keeps the powers in range
        G = G @ G
        size = fro(G)
        bound = bound * size ** (0.25 / 2**j)
    return bound


def iterate(X: Tensor, steps: Sequence[tuple[float, float]], tol: float | None = None) -> tuple[Tensor, int]:
    """Take cubic steps (a, b), as few as bring every DfI of the batch to `tol` or below if that is given.

    X may be overwritten.

    Returns:
        The result and the number of steps taken.
    """
    # 3 products of n x n a step beat 2 of m x n once m > 1.5 n; entering and leaving the Gram form costs two.
    if X.shape[-2] >= 2 * X.shape[-1] and len(steps) > 2:
        return _iterate_gram(X, steps, tol)
    Y = torch.empty_like(X)
    for k, (a, b) in enumerate(steps):
        G = gram(X)
        if tol is not None and bool((gram_dfi(G) <= tol).all()):
            return X, k
        torch.baddbmm(X, X, G, beta=a, alpha=b, out=Y)  # a X + b X G
        X, Y = Y, X
    return X, len(steps)


def _iterate_gram(X: Tensor, steps: Sequence[tuple[float, float]], tol: float | None) -> tuple[Tensor, int]:
    """The same for tall X: every iterate is X P with P a polynomial of A = X^T X, so only n x n matrices move."""
    A = gram(X)
    P = None
    for k, (a, b) in enumerate(steps):
        if tol is not None and bool((gram_dfi(A) <= tol).all()):
            return (X if P is None else X @ P), k
        M = b * A
        M.diagonal(dim1=-2, dim2=-1).add_(a)  # one step is X <- X M
        P = M if P is None else P @ M
        if tol is not None or k + 1 < len(steps):
            A = M @ (A @ M)
    return (X if P is None else X @ P), len(steps)
