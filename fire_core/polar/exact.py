"""The exact polar factor of a batch, to working precision, by the cheapest route that keeps the guarantee.

Every route ends in singular values within 2e-6 of 1 in float32 (rounding level in float64), for condition numbers up
to 1e6. Directions along small singular values are the hard part: a float32 product disturbs the polar factor by
about 6e-8 times the condition number, so the condition number is brought down in float64 first.

- square, CPU: Newton's iteration X <- (g X + X^-T / g) / 2 in float64 takes condition number k to sqrt(k) / 2; one or
  two of these, then matmul-only minimax steps in the working precision, which are cheap.
- tall, CPU: W (W^T W)^(-1/2) by an eigendecomposition of the small Gram matrix in float64.
- GPU: minimax steps alone, in float64 (which data-centre GPUs multiply as fast as float32).
- whatever does not arrive, and everything rank-deficient: QR and SVD in float64, one matrix at a time.
"""

import torch
from torch import Tensor

from fire_core.polar.steps import (
    PAPER,
    Step,
    fro,
    gram,
    gram_dfi,
    iterate,
    minimax_ladder,
    minimax_steps,
    prepare,
    take,
    upper_bound,
    working_dtype,
)

CPU_CHUNK, GPU_CHUNK = 2**18, 2**26  # entries handled at once: bounds the memory beyond input and output
SETTLED_DFI = 2e-6  # a DfI below this before the last step is below 1e-11 after it (the step squares it)
SQUARE_COND = 4e6  # beyond: the singular value decomposition decides the rank
TALL_COND = 1e5  # beyond: the Gram matrix has lost the small singular values, even in float64
LONGEST = 12  # steps of a schedule, which reach condition 1e6; a bound beyond that (infinite, say) does not hang it
GPU_LOW = 1e-4  # relative singular value that the first pass on a GPU settles; smaller ones take a second


def launch(W: Tensor, out: Tensor) -> Tensor:
    """Write the polar factors of W (B, m, n), m >= n, into `out`; on a GPU without waiting for the device.

    On a CPU, W must be finite.

    Returns:
        Which of them arrived, (B,) bool; the others go to `repair`.
    """
    B, m, n = W.shape
    fine = torch.ones(B, dtype=torch.bool, device=W.device)
    cpu = W.device.type == "cpu"
    size = max(1, (CPU_CHUNK if cpu else GPU_CHUNK) // (m * n))
    solve = matmul_only if not cpu else _square if m == n else _tall
    for i in range(0, B, size):
        X, fine[i : i + size] = solve(prepare(W[i : i + size]))
        out[i : i + size] = X
    return fine


def repair(W: Tensor, init: Tensor | None, seed: int) -> tuple[Tensor, int]:
    """One polar factor (m, n), m >= n, by SVD in float64, its null space filled from `init`; and the rank.

    With U_r, V_r the singular vectors of the rank r that W has, the result is U_r V_r^T + polar(Z), where
    Z = (I - U_r U_r^T) init (I - V_r V_r^T). That does not depend on which basis of the null space LAPACK returns.
    Where Z is rank-deficient too (no init, or the same dead rows), a seeded Gaussian takes its place.
    """
    # A product of float32 factors leaves 3e-8 to 1e-7 of the norm in its null space; condition 1e6 is full rank.
    relative = W.shape[0] * 2.3e-16 if W.dtype == torch.float64 else 2.4e-7
    if W.device.type != "cpu":
        X, fine = matmul_only(prepare(W[None]), low=1e-5)
        if bool(fine):
            return X[0].to(W.dtype), W.shape[1]
    W64 = prepare(W[None])[0].double()
    Q, R = torch.linalg.qr(W64) if W.shape[0] > W.shape[1] else (None, W64)
    U, S, Vh = torch.linalg.svd(R, full_matrices=False)
    U = U if Q is None else Q @ U
    floor = relative * S[0]
    rank = int((floor < S).sum())
    X = U[:, :rank] @ Vh[:rank]
    left, null = U[:, :rank], Vh[rank:].mT  # (m, r), (n, n - r)
    generator = torch.Generator().manual_seed(seed)
    source = init
    while null.shape[1] > 0:
        if source is None:
            source = torch.randn(W.shape, generator=generator, dtype=torch.float64)
        start = source.to(W64)
        Z = start @ null  # (m, k): what the source does to the directions that W lost ...
        for _ in range(2):
            Z = Z - left @ (left.mT @ Z)  # ... outside what W reaches (once leaves rounding, twice does not)
        u, s, vh = torch.linalg.svd(Z, full_matrices=False)
        k = int((s > 1e-7 * fro(start).squeeze()).sum())
        X = X + u[:, :k] @ (vh[:k] @ null.mT)
        left = torch.cat([left, u[:, :k]], dim=1)
        null = null @ vh[k:].mT
        source = None  # what is still missing comes from a Gaussian
    return X.to(W.dtype), rank


def _settle(X: Tensor, steps: list[Step]) -> tuple[Tensor, Tensor]:
    """The `steps` and a last one of the paper's; and whether each matrix arrived, (B,)."""
    X, _ = iterate(X, steps)
    G = gram(X)
    fine = gram_dfi(G) <= SETTLED_DFI  # false for NaN
    X = take(X, G, PAPER, out=torch.empty_like(X))
    if X.dtype == torch.float64:
        X, _ = iterate(X, [PAPER] * 2)  # errors 1e-3, 1e-6, 1e-12, rounding
    return X, fine


def _top(G: Tensor, rounds: int) -> Tensor:
    """The largest eigenvalues of Gram matrices, (B, n, n) -> (B,), by power iteration, from below.

    Rows, not columns: torch multiplies a batch by column vectors ten times more slowly.
    """
    n = G.shape[-1]
    v = torch.cos(torch.arange(n, dtype=G.dtype, device=G.device).square_() + 1).expand(len(G), 1, n)
    for _ in range(rounds):
        v = v @ G
        size = fro(v)
        v = v / size
    return size.flatten()


def _newton(X: Tensor, inverse_t: Tensor, gamma: Tensor) -> Tensor:
    """Newton's iteration from X and X^-T, which is overwritten."""
    return X.mul(0.5 * gamma).add_(inverse_t.div_(2 * gamma))


def _inverse(X: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed inverses of X (B, n, n), and whether LU met no zero pivot, (B,).

    LAPACK returns an inverse by columns, so that its transpose is what lies in order.

    One matrix at a time: with two threads or more, torch 2.15 (MKL) mixes up the pivots of a batch of n >= 160
    and returns wrong inverses without a word.
    """
    inverse_t, infos = torch.empty_like(X), []
    for b, matrix in enumerate(X):
        inverse, info = torch.linalg.inv_ex(matrix)
        inverse_t[b] = inverse.mT
        infos.append(info)
    return inverse_t, torch.stack(infos) == 0


def _square(W: Tensor) -> tuple[Tensor, Tensor]:
    X = W.double()
    inverse_t, fine = _inverse(X)
    v = W[:, :1]
    for _ in range(2):  # sigma_max, roughly: a bad guess costs steps, not accuracy
        v = (v / fro(v)) @ W.mT @ W
    top, bottom = fro(v).sqrt().double(), fro(inverse_t)  # ||X^-1||_F is 1 / sigma_min or a little more
    fine &= (1.25 * top * bottom < SQUARE_COND).flatten()  # false for NaN
    if not fine.all():
        eye = torch.eye(X.shape[-1], dtype=X.dtype)
        X[~fine], inverse_t[~fine], top[~fine], bottom[~fine] = eye, eye, 1.0, 1.0
    X = _newton(X, inverse_t, (bottom / top).sqrt())
    del inverse_t
    Y, high, G = _condition(X, working_dtype(W))
    hard = high > 200
    if hard.any():  # a second Newton iteration takes condition 500 to 11
        Z = X[hard]
        Z = _newton(Z, _inverse(Z)[0], high[hard].rsqrt()[:, None, None])
        Y[hard], high[hard], G[hard] = _condition(Z, working_dtype(W))
    del X
    X, settled = _settle(_shrink(Y, G, high), [])
    return X, fine & settled


def _shrink(Y: Tensor, G: Tensor, high: Tensor) -> Tensor:
    """Minimax steps that take all singular values from [1, high] to nearly 1.

    The worst matrix of a batch sets the schedule, and the others join it at the step that they need: few do need the
    first ones, in which the batch would otherwise wait for its outliers.

    Args:
        Y: (B, n, n); overwritten.
        G: its Gram matrices.
        high: (B,) bounds.
    """
    needed = 1 / high.float()
    ladder = minimax_ladder(1)
    while ladder[0][1] > float(needed.min()) and len(ladder) < LONGEST:
        ladder = minimax_ladder(len(ladder) + 1)
    lows = torch.tensor([low for _, low in ladder])
    first = (lows[None] <= needed[:, None]).sum(1).clamp_min(1) - 1  # the step at which each joins
    first, order = first.sort(stable=True)
    Y, G = Y[order], G[order]
    X, Z, active = torch.empty_like(Y), torch.empty_like(Y), 0
    for number, (step, low) in enumerate(ladder):
        if active:
            take(X[:active], gram(X[:active]), step, out=Z[:active])
        joined = active + int((first == number).sum())
        if joined > active:
            a, b, c = step
            take(Y[active:joined], G[active:joined], (a * low, b * low**3, c * low**5), out=Z[active:joined])
        X, Z, active = Z, X, joined
    out = torch.empty_like(X)
    out[order] = X
    return out


def _condition(X: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A Newton iterate in `dtype`, a bound on its condition number, and its Gram matrix.

    All its singular values are >= 1, so the largest is the condition number. Power iteration is up to 11 % low on
    dense spectra.
    """
    X = X.to(dtype)
    G = gram(X)
    return X, 1.25 * _top(G, 8).sqrt(), G


def _tall(W: Tensor) -> tuple[Tensor, Tensor]:
    B, m, n = W.shape
    work = working_dtype(W)
    rows = max(n, CPU_CHUNK // (B * n))
    G = W.new_zeros(B, n, n, dtype=torch.float64)
    for i in range(0, m, rows):
        G += gram(W[:, i : i + rows].double())
    L, V = torch.linalg.eigh(G)
    cond2 = L[:, -1] / L[:, 0]
    fine = (cond2 > 0) & (cond2 < TALL_COND**2)
    L = torch.where(fine[:, None], L, 1.0)
    P = (V * L.rsqrt()[:, None, :]) @ V.mT
    X = torch.empty(B, m, n, dtype=work)
    for i in range(0, m, rows):
        X[:, i : i + rows] = W[:, i : i + rows].double() @ P
    rough = fine & (cond2 > 1e6)  # the Gram matrix squares rounding to 1e-16 * cond2: one cubic step more
    if work == torch.float64 or rough.any():
        X, settled = _settle(X, [])
        fine &= settled
    return X, fine


def matmul_only(W: Tensor, low: float = GPU_LOW) -> tuple[Tensor, Tensor]:
    X = W.double()
    bound = upper_bound(X, 2)
    X, fine = _settle(X / torch.where(bound > 0, bound, 1), minimax_steps(low))
    return X.to(working_dtype(W)), fine
