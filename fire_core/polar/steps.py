"""Polynomial steps X <- X (a I + b X^T X + c (X^T X)^2) on batches (B, m, n), m >= n: what every solver is made of.

A step keeps the singular vectors and sends each singular value s to a s + b s^3 + c s^5.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

Step = tuple[float, float, float]

PAPER: Step = (1.5, -0.5, 0.0)  # cubic Newton-Schulz: sends 1 to 1 with slope 0, all of (0, sqrt 3) towards 1
MUON: Step = (3.4445, -4.7750, 2.0315)  # Jordan et al., 2024: slope 3.4 at 0, and no fixed point at 1
RESTART = 5  # steps on the Gram matrix alone; its rounding errors grow 2.25-fold in each of the paper's
SETTLED = 1 - 2e-5  # from here one step of the paper reaches rounding in float32


def minimax_steps(low: float) -> list[Step]:
    """A short run of quintic steps that takes all singular values from [low, 1] into [SETTLED, 1].

    Tiny singular values grow more than fourfold a step, against 1.5 with the paper's.

    Args:
        low: a lower bound, in (0, 1]. Smaller singular values do no harm, but do not arrive.
    """
    steps = []
    while low < SETTLED:
        step, low = _minimax_quintic(low)
        steps.append(step)
    return steps


@cache
def _minimax_quintic(low: float) -> tuple[Step, float]:
    """The odd quintic p closest to 1 on [low, 1], divided by its maximum there; and its new lower bound.

    Remez's exchange: the error of the best p equioscillates on low < q < r < 1, where q and r are the extrema inside,
    which the quadratic p'(x) = 0 in x^2 gives in closed form.
    """
    middle, half = (1 + low) / 2, (1 - low) / 2
    points = torch.tensor([low, middle - half / 2, middle + half / 2, 1.0], dtype=torch.float64, device="cpu")
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64, device="cpu")
    for _ in range(12):
        powers = torch.stack([points, points**3, points**5, signs], dim=1)
        a, b, c, error = torch.linalg.solve(powers, torch.ones_like(points)).tolist()
        root = max(9 * b * b - 20 * a * c, 0.0) ** 0.5
        points[1], points[2] = ((-3 * b - root) / (10 * c)) ** 0.5, ((-3 * b + root) / (10 * c)) ** 0.5
    return (a / (1 + error), b / (1 + error), c / (1 + error)), (1 - error) / (1 + error)


def gram(X: Tensor) -> Tensor:
    """X^T X, (B, m, n) -> (B, n, n).

    BLAS would compute half of a symmetric product (syrk), but torch has no name for it: on a CPU the upper block
    triangle is computed and mirrored, 5/8 of the arithmetic.
    """
    n, h = X.shape[-1], _block(X)
    if h == n:
        return X.mT @ X
    G = X.new_empty(X.shape[0], n, n)
    for i in range(0, n, h):
        torch.bmm(X[:, :, i : i + h].mT, X[:, :, i:], out=G[:, i : i + h, i:])
    for i in range(h, n, h):
        G[:, i : i + h, :i] = G[:, :i, i : i + h].mT
    return G


def _block(X: Tensor) -> int:
    """How many columns of the Gram matrix of X (B, m, n) are computed at once; n: all.

    Where blocks pay was measured: with more than one thread small products leave the others idle, so that half the
    arithmetic takes up to twice the time.
    """
    n = X.shape[-1]
    if X.device.type != "cpu" or torch.compiler.is_compiling():
        return n
    quarters, halves = (128, 128) if torch.get_num_threads() == 1 else (768, 512)
    return -(-n // 4) if n >= quarters else -(-n // 2) if n >= halves else n


def gram_dfi(G: Tensor) -> Tensor:
    """||G - I||_F^2 of each Gram matrix, (B, n, n) -> (B,)."""
    E = G.clone()
    E.diagonal(dim1=-2, dim2=-1).sub_(1)
    return E.square().sum((-2, -1))


def dfi_and_square(X: Tensor) -> tuple[Tensor, Tensor]:
    """||X^T X - I||_F^2 and ||X||_F^2, the trace of X^T X, of each matrix, (B, m, n), m >= n -> (B,), (B,) float64.

    Of a Gram matrix in blocks, those above the diagonal count twice, and nothing is mirrored.
    """
    n, h = X.shape[-1], max(1, _block(X))
    dfi = square = X.new_zeros(len(X), dtype=torch.float64)
    room = X.new_empty(len(X) * h * n)  # one block after the other: fresh memory costs as much as half a product
    for i in range(0, n, h):
        left, right = X[:, :, i : i + h], X[:, :, i:]
        P = room[: len(X) * left.shape[2] * right.shape[2]].view(len(X), left.shape[2], right.shape[2])
        if len(X) == 1:  # the product for single matrices, whose bits are those of `metrics.dfi`
            torch.mm(left[0].mT, right[0], out=P[0])
        else:
            torch.bmm(left.mT, right, out=P)
        diagonal = P.diagonal(dim1=-2, dim2=-1)
        square = square + diagonal.sum(-1, dtype=torch.float64)
        diagonal.sub_(1)
        P.square_()
        on = P[:, :, :h].sum((-2, -1))
        dfi = dfi + on if i + h >= n else dfi + on + 2.0 * P[:, :, h:].sum((-2, -1)).double()
    return dfi, square


def prepare(W: Tensor) -> Tensor:
    """A contiguous copy of W (B, m, n) in float32, or float64 if W is, scaled by a power of two.

    The largest entry of each matrix comes to lie in [1, 2): without that, squares of entries below 1e-19 underflow and
    above 1e19 overflow in float32. A power of two rounds nothing. Zero matrices stay; NaN and Inf become NaN.
    """
    X = torch.empty(W.shape, dtype=working_dtype(W), device=W.device).copy_(W)
    peak = torch.maximum(X.amax((-2, -1), keepdim=True), -X.amin((-2, -1), keepdim=True))
    power = torch.exp2(torch.floor(torch.log2(peak)))
    return X.div_(torch.where(peak > 0, power, 1))


def all_finite(W: Tensor) -> Tensor:
    """Whether each matrix of W (..., m, n) is free of NaN and Inf, (B,) bool.

    The extremes tell: NaN spreads to both. That is one pass, where `isfinite` makes several.
    """
    if W.numel() == 0:
        return torch.ones(W.shape[:-2].numel(), dtype=torch.bool, device=W.device)
    low, high = W.reshape(-1, W.shape[-2] * W.shape[-1]).aminmax(dim=1)
    return low.isfinite() & high.isfinite()


def working_dtype(W: Tensor) -> torch.dtype:
    return W.dtype if W.dtype == torch.float64 else torch.float32


def to_working(W: Tensor) -> Tensor:
    """W in the precision in which it is computed, float32 or float64.

    Raises:
        ValueError: W is complex, which nothing here supports.
    """
    if W.is_complex():
        raise ValueError(f"{W.dtype} is not supported: expected a real type")
    return W.to(working_dtype(W))


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


def iterate(X: Tensor, steps: Sequence[Step], tol: float | None = None) -> tuple[Tensor, int]:
    """Take the steps, as few as bring every DfI of the batch to `tol` or below if that is given.

    X may be overwritten.

    Returns:
        The result and the number of steps taken.
    """
    if X.shape[-2] >= 2 * X.shape[-1] and len(steps) > 2:
        taken = 0
        for i in range(0, len(steps), RESTART):
            X, k = _iterate_gram(X, steps[i : i + RESTART], tol)
            taken += k
            if k < len(steps[i : i + RESTART]):
                break
        return X, taken
    Y = torch.empty_like(X)
    for k, step in enumerate(steps):
        G = gram(X)
        if tol is not None and bool((gram_dfi(G) <= tol).all()):
            return X, k
        take(X, G, step, out=Y)
        X, Y = Y, X
    return X, len(steps)


def take(X: Tensor, G: Tensor, step: Step, out: Tensor) -> Tensor:
    """One step from X, whose Gram matrix is G."""
    a, b, c = step
    if c == 0:
        return torch.baddbmm(X, X, G, beta=a, alpha=b, out=out)
    return torch.bmm(X, _polynomial(G, step), out=out)


def _polynomial(G: Tensor, step: Step) -> Tensor:
    a, b, c = step
    M = b * G if c == 0 else gram(G).mul_(c).add_(G, alpha=b)  # G is symmetric: its Gram matrix is its square
    M.diagonal(dim1=-2, dim2=-1).add_(a)
    return M


def _iterate_gram(X: Tensor, steps: Sequence[Step], tol: float | None) -> tuple[Tensor, int]:
    """The same for tall X: every iterate is X P, P a polynomial of A = X^T X, so that only n x n matrices move.

    A cubic step is then 3 products of n x n, against 2 of m x n. Its M = a I + b A is not made: P M = a P + b P A, and
    since M and A commute, M A M = a B + b A B where B = A M = a A + b A A.
    """
    A = gram(X)
    P = None
    for k, step in enumerate(steps):
        if tol is not None and bool((gram_dfi(A) <= tol).all()):
            return (X if P is None else X @ P), k
        a, b, c = step
        more = tol is not None or k + 1 < len(steps)
        if c == 0 and P is not None:
            P = torch.baddbmm(P, P, A, beta=a, alpha=b)
        else:
            M = _polynomial(A, step)
            P = M if P is None else P @ M
        if more and c == 0:
            B = torch.baddbmm(A, A, A, beta=a, alpha=b)
            A = torch.baddbmm(B, A, B, beta=a, alpha=b)
        elif more:
            A = M @ (A @ M)
    return (X if P is None else X @ P), len(steps)
