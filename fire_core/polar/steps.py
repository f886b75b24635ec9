"""Polynomial steps X <- X (a I + b X^T X + c (X^T X)^2) on batches (B, m, n), m >= n, of which all solvers are built.

A step keeps the singular vectors and sends each singular value s to a s + b s^3 + c s^5.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

Step = tuple[float, float, float]  # (a, b, c)

PAPER: Step = (1.5, -0.5, 0.0)  # cubic Newton-Schulz: sends 1 to 1 with slope 0, all of (0, sqrt 3) towards 1
MUON: Step = (3.4445, -4.7750, 2.0315)  # Jordan et al., 2024: slope 3.4 at 0, and no fixed point at 1
# How many steps are taken on the Gram matrix before X is computed: its rounding errors grow 2.25-fold in a PAPER step.
RESTART = 5
SETTLED = 1 - 2e-5  # singular values from here to 1 reach rounding in float32 by one PAPER step


def minimax_steps(low: float) -> list[Step]:
    """Return quintic steps, as few as possible, that take all singular values from [low, 1] into [SETTLED, 1].

    Each grows tiny singular values more than fourfold; the paper's step grows them 1.5-fold.

    Args:
        low: a lower bound on the singular values, in (0, 1]. Smaller ones do no harm, but end below SETTLED.
    """
    steps = []
    while low < SETTLED:
        step, low = _minimax_quintic(low)
        steps.append(step)
    return steps


@cache
def _minimax_quintic(low: float) -> tuple[Step, float]:
    """Return the odd quintic p closest to 1 on [low, 1], divided by its maximum there, and its minimum there.

    This is Remez's exchange algorithm: the error of the best p equioscillates on low < q < r < 1, where q and r are the
    extrema of p inside, which the quadratic p'(x) = 0 in x^2 gives in closed form.
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
    """Return the Gram matrices X^T X, (B, m, n) -> (B, n, n).

    BLAS can compute half of a symmetric product (syrk), but torch does not offer it. Instead, on a CPU the upper block
    triangle is computed and mirrored, which takes 5/8 of the arithmetic.
    """
    n, h = X.shape[-1], _block_width(X)
    if h == n:
        return X.mT @ X
    G = X.new_empty(X.shape[0], n, n)
    for i in range(0, n, h):
        torch.bmm(X[:, :, i : i + h].mT, X[:, :, i:], out=G[:, i : i + h, i:])
    for i in range(h, n, h):
        G[:, i : i + h, :i] = G[:, :i, i : i + h].mT
    return G


def _block_width(X: Tensor) -> int:
    """Return how many columns of the Gram matrix of X (B, m, n) are computed at once; n stands for all.

    The limits, from which on blocks pay, were measured. They are higher with more than one thread, because products of
    small blocks leave threads idle and can take up to twice the time.
    """
    n = X.shape[-1]
    if X.device.type != "cpu" or torch.compiler.is_compiling():
        return n
    quarters, halves = (128, 128) if torch.get_num_threads() == 1 else (768, 512)
    if n >= quarters:
        return -(-n // 4)
    return -(-n // 2) if n >= halves else n


def gram_dfi(G: Tensor) -> Tensor:
    """Return ||G - I||_F^2 of each Gram matrix, (B, n, n) -> (B,)."""
    E = G.clone()
    E.diagonal(dim1=-2, dim2=-1).sub_(1)
    return E.square().sum((-2, -1))


def dfi_and_square(X: Tensor) -> tuple[Tensor, Tensor]:
    """Return ||X^T X - I||_F^2 and ||X||_F^2, the trace of X^T X, of each matrix.

    The upper block triangle of the Gram matrix is enough: blocks above the diagonal count twice.

    Args:
        X: (B, m, n), m >= n.

    Returns:
        (B,) and (B,), float64.
    """
    n, h = X.shape[-1], max(1, _block_width(X))
    dfi = square = X.new_zeros(len(X), dtype=torch.float64)
    buffer = X.new_empty(len(X) * h * n)  # all blocks use it in turn, as new memory costs as much as half a product
    for i in range(0, n, h):
        left, right = X[:, :, i : i + h], X[:, :, i:]
        P = buffer[: len(X) * left.shape[2] * right.shape[2]].view(len(X), left.shape[2], right.shape[2])
        if len(X) == 1:  # mm, so that a single matrix gives the same bits as `metrics.dfi`
            torch.mm(left[0].mT, right[0], out=P[0])
        else:
            torch.bmm(left.mT, right, out=P)
        diagonal = P.diagonal(dim1=-2, dim2=-1)
        square = square + diagonal.sum(-1, dtype=torch.float64)
        diagonal.sub_(1)
        P.square_()
        dfi = dfi + P[:, :, :h].sum((-2, -1))
        if i + h < n:
            dfi = dfi + 2.0 * P[:, :, h:].sum((-2, -1)).double()
    return dfi, square


def prepare(W: Tensor) -> Tensor:
    """Return a contiguous copy of W (B, m, n), each matrix scaled by a power of two, in float32 or W's float64.

    The largest entry of each matrix comes to lie in [1, 2). Without that, squares of entries below 1e-19 would
    underflow and above 1e19 overflow in float32. Scaling by a power of two is exact. Zero matrices stay zero; NaN and
    Inf become NaN.
    """
    X = torch.empty(W.shape, dtype=working_dtype(W), device=W.device).copy_(W)
    peak = torch.maximum(X.amax((-2, -1), keepdim=True), -X.amin((-2, -1), keepdim=True))
    power = torch.exp2(torch.floor(torch.log2(peak)))
    return X.div_(torch.where(peak > 0, power, 1))


def all_finite(W: Tensor) -> Tensor:
    """Return whether each matrix of W (..., m, n) is free of NaN and Inf, (B,) bool.

    Only the smallest and the largest entry are checked, to which NaN spreads: one pass, where `isfinite` makes several.
    """
    if W.numel() == 0:
        return torch.ones(W.shape[:-2].numel(), dtype=torch.bool, device=W.device)
    low, high = W.reshape(-1, W.shape[-2] * W.shape[-1]).aminmax(dim=1)
    return low.isfinite() & high.isfinite()


def working_dtype(W: Tensor) -> torch.dtype:
    """Return the dtype in which W is computed: float64 if W has it, else float32."""
    return W.dtype if W.dtype == torch.float64 else torch.float32


def to_working(W: Tensor) -> Tensor:
    """Return W in the precision in which it is computed, float32 or float64.

    Raises:
        ValueError: W is complex, which nothing here supports.
    """
    if W.is_complex():
        raise ValueError(f"{W.dtype} is not supported: expected a real type")
    return W.to(working_dtype(W))


def fro(X: Tensor) -> Tensor:
    """Return the Frobenius norm of each matrix, (B, m, n) -> (B, 1, 1)."""
    norm: Tensor = torch.linalg.matrix_norm(X, keepdim=True)
    return norm


def upper_bound(X: Tensor, squarings: int) -> Tensor:
    """Return an upper bound on the largest singular value of each matrix, (B, m, n) -> (B, 1, 1).

    It is the Schatten norm of order p = 4 * 2^squarings, from ||(X^T X)^(p/4)||_F, which is at most n^(1/p) times the
    largest singular value.
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
    """Take the steps; with a `tol`, only until every DfI of the batch is at most `tol`.

    Args:
        X: (B, m, n), m >= n; it may be overwritten.
        steps: coefficients of the steps.
        tol: DfI at which to stop.

    Returns:
        The result and the number of steps taken.
    """
    if X.shape[-2] >= 2 * X.shape[-1] and len(steps) > 2:  # where steps on the small Gram matrix are cheaper
        taken = 0
        for i in range(0, len(steps), RESTART):
            section = steps[i : i + RESTART]
            X, section_taken = _iterate_gram(X, section, tol)
            taken += section_taken
            if section_taken < len(section):
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
    """Take one step from X (B, m, n), whose Gram matrices are G (B, n, n), and write the result to `out`."""
    a, b, c = step
    if c == 0:
        return torch.baddbmm(X, X, G, beta=a, alpha=b, out=out)
    return torch.bmm(X, _polynomial(G, step), out=out)


def _polynomial(G: Tensor, step: Step) -> Tensor:
    """Return a I + b G + c G^2 for symmetric G (B, n, n)."""
    a, b, c = step
    M = b * G if c == 0 else gram(G).mul_(c).add_(G, alpha=b)  # G is symmetric: its Gram matrix is its square
    M.diagonal(dim1=-2, dim2=-1).add_(a)
    return M


def _iterate_gram(X: Tensor, steps: Sequence[Step], tol: float | None) -> tuple[Tensor, int]:
    """Do what `iterate` does for tall X, with products of n x n matrices alone.

    Every iterate is X P, where P is a polynomial of X^T X; A is the Gram matrix of the iterate. A step with the matrix
    M = a I + b A + c A^2 takes P to P M and A to M A M. A cubic step (c = 0) costs 3 products of n x n instead of 2 of
    m x n, and M need not be computed: P M = a P + b P A, and since M and A commute, M A M = a B + b A B with
    B = A M = a A + b A A.
    """
    A = gram(X)
    P = None  # stands for the identity
    for k, step in enumerate(steps):
        if tol is not None and bool((gram_dfi(A) <= tol).all()):
            return (X if P is None else X @ P), k
        a, b, c = step
        needs_gram = tol is not None or k + 1 < len(steps)  # the last step needs no further Gram matrix
        if c == 0 and P is not None:
            P = torch.baddbmm(P, P, A, beta=a, alpha=b)
        else:
            M = _polynomial(A, step)
            P = M if P is None else P @ M
        if needs_gram and c == 0:
            B = torch.baddbmm(A, A, A, beta=a, alpha=b)
            A = torch.baddbmm(B, A, B, beta=a, alpha=b)
        elif needs_gram:
            A = M @ (A @ M)
    return (X if P is None else X @ P), len(steps)
