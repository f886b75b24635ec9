"""Polar factors of batches of matrices: the projection at the heart of FIRE.

The nearest isometry to W = U S V^T in the Frobenius norm is its polar factor U V^T (for m < n: nearest co-isometry).
FIRE (Han et al., ICLR 2026, arXiv 2602.08040) approximates it by a fixed number of cubic Newton-Schulz steps, which
leave small singular values below 1; the solver `exact` computes it. The two are different methods: neither is ever
used in place of the other. Nothing here knows an nn.Module or scales its result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fire_core.polar import exact
from fire_core.polar.options import NORM_INITS, PolarOptions, check_iterations, check_word
from fire_core.polar.steps import MUON, PAPER, Step, all_finite, fro, gram, iterate, prepare, upper_bound, working_dtype

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CHUNK = 2**18  # entries that a CPU handles at once: three float32 buffers of 1 MB, which its caches hold


class NonFiniteError(ValueError):
    """Raised for NaN or Inf in the input.

    Attributes:
        indices: flat positions, within the batch, of the matrices that hold NaN or Inf.
    """

    def __init__(self, indices: list[int]) -> None:
        super().__init__(f"NaN or Inf in matrices {indices} of the batch")
        self.indices = indices


@dataclass(frozen=True)
class PolarReport:
    """What `solve` did to a batch.

    Attributes:
        solver: name of the solver.
        iterations: Newton-Schulz or Muon steps taken; 0 for `exact`.
        rank: (...,) int64, the number of singular values above 2.4e-7 of the largest (float64 input: m eps); None
            unless `exact`. If it is below the smaller side, the null space was filled from `init` or a Gaussian.
    """

    solver: str
    iterations: int
    rank: Tensor | None = None


@torch.no_grad()
def newton_schulz(W: Tensor, iterations: int = 10, norm_init: str = "frobenius", tol: float | None = None) -> Tensor:
    """Take cubic Newton-Schulz steps X <- 1.5 X - 0.5 X X^T X from X = W / norm: the projection as the paper lists it.

    Every singular value s follows s <- 1.5 s - 0.5 s^3; singular vectors stay. All choices of `norm_init` start in
    (0, 1], so no matrix diverges; a singular value that starts at s needs about log(1 / s) / log(1.5) steps.
    Half precisions are computed in float32. Zero matrices stay zero (the reference code returns NaN); NaN and Inf
    spread within their own matrix. With `tol=None` the function compiles with `fullgraph=True`. Compiled code keeps the
    matmul precision that the user has set; otherwise float32 products are full float32 whatever was set.

    Args:
        W: (..., m, n), real floating point.
        iterations: number of steps.
        norm_init: the norm by which W is divided first: "frobenius", "spectral", "power" or "schatten4"; see
            `PolarOptions`.
        tol: stop early once the largest DfI of the batch lies below this; each step then waits for the GPU.

    Returns:
        (..., m, n) in W's dtype.

    Raises:
        ValueError: an option or a tensor that is not accepted.
    """
    check_iterations(iterations)
    check_word("norm_init", norm_init, NORM_INITS)
    check_matrices(W)
    if torch.compiler.is_compiling():
        return _normalise_and_iterate(W, [PAPER] * iterations, norm_init, tol)[0]
    with full_precision(W.device.type):
        return _normalise_and_iterate(W, [PAPER] * iterations, norm_init, tol)[0]


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
    """Return the nearest isometries of matrices, U V^T of W = U S V^T.

    `exact` promises for a full-rank float32 matrix of condition number up to 1e6: singular values within 2e-6 of 1,
    DfI / n <= 1e-11, and ||X - U V^T||_F / sqrt(n) <= 1e-5 against a float64 SVD, with n the smaller side. A
    rank-deficient matrix has no unique nearest isometry: on its null space the result is the nearest isometry to
    `init`, or without `init` to a Gaussian drawn from `seed`. The same input, device and number of threads give the
    same result.

    Args:
        W: (..., m, n), float16, bfloat16, float32 or float64; any batch shape, empty ones included.
        solver: "exact", "newton_schulz" (the paper) or "muon". `PolarOptions` describes it and the options below.
        iterations: steps of the iterative solvers.
        norm_init: the norm by which W is divided before the first step.
        tol: stop Newton-Schulz early once the largest DfI of a batch lies below this.
        init: (..., m, n), fills the null space of a rank-deficient matrix with "exact".
        seed: seed of the Gaussian that fills the null space without `init`.

    Returns:
        (..., m, n) in W's dtype and device, never aliasing W.

    Raises:
        NonFiniteError: a ValueError that says which matrices hold NaN or Inf.
        ValueError: an option or a tensor that is not accepted.
    """
    return solve(W, PolarOptions(solver, iterations, norm_init, tol, seed), init)[0]


@torch.no_grad()
def solve(
    W: Tensor, options: PolarOptions, init: Tensor | None = None, known_finite: bool = False
) -> tuple[Tensor, PolarReport]:
    """Return the polar factors of W and a report of what was done.

    On a GPU the host waits for the device once; with a `tol`, once for each step.

    Args:
        W: (..., m, n).
        options: solver and its options.
        init: see `polar_factor`.
        known_finite: skip the check for NaN and Inf, because the caller has made it.

    Raises:
        NonFiniteError: W holds NaN or Inf.
        ValueError: a tensor is not accepted, see `polar_factor`.
    """
    check_matrices(W)
    if init is not None and init.shape != W.shape:
        raise ValueError(f"init has shape {tuple(init.shape)}, W {tuple(W.shape)}")
    solver = options.solver
    finite = [] if known_finite else [all_finite(W)]  # flags that are still to be read from the device
    if W.device.type == "cpu":  # checked first, as LAPACK does not accept NaN; reading the flags costs no wait here
        _raise_if_nonfinite(finite)
        finite = []
    with full_precision(W.device.type):
        if solver == "newton_schulz":
            X, taken = _normalise_and_iterate(W, [PAPER] * options.iterations, options.norm_init, options.tol)
            _raise_if_nonfinite(finite)
            return X, PolarReport(solver, taken)
        if solver == "muon":
            X, taken = _normalise_and_iterate(W, [MUON] * options.iterations, "frobenius", None)
            _raise_if_nonfinite(finite)
            return X, PolarReport(solver, taken)
        X = torch.empty(W.shape, dtype=W.dtype, device=W.device)
        converged = _launch(W, X)
        flags = torch.stack([*finite, converged]).cpu()  # the one wait for the device
        _raise_if_nonfinite(list(flags[:-1]))
        return X, _repair(W, X, flags[-1].tolist(), init, options.seed)


def _raise_if_nonfinite(finite: list[Tensor]) -> None:
    """Check the flags that say which matrices of a batch are finite.

    Args:
        finite: bool tensors (count,); none if the caller knows that all are finite.

    Raises:
        NonFiniteError: with the indices of the others.
    """
    for flags in finite:
        if bad := [i for i, is_finite in enumerate(flags.tolist()) if not is_finite]:
            raise NonFiniteError(bad)


def check_matrices(W: Tensor) -> None:
    """Check that W holds matrices of a supported type.

    Raises:
        ValueError: W is not (..., m, n), or not of a real floating-point type of two bytes or more, or is sharded.
    """
    if hasattr(W, "device_mesh"):  # a DTensor
        raise ValueError("the matrices are sharded over processes: give their .full_tensor(), or the model to fire_")
    if W.ndim < 2:
        raise ValueError(f"a tensor of shape {tuple(W.shape)} holds no matrix: expected (..., m, n)")
    if W.dtype not in FLOATS:
        raise ValueError(f"{W.dtype} is not supported: expected {', '.join(map(str, FLOATS))}")


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Within this block, compute matmuls without TF32, bfloat16 and autocast, whatever the caller has set.

    This sets `fp32_precision` of each backend, because `torch.get_float32_matmul_precision` raises if a user has set
    the backends' own.

    Args:
        device: type of the device, "cpu" or "cuda".
    """
    untyped: Any = torch.backends
    backends = (untyped.cuda.matmul, untyped.mkldnn.matmul)
    changed = [(b, b.fp32_precision) for b in backends if b.fp32_precision != "ieee"]  # setting it is slow
    try:
        for backend, _ in changed:
            backend.fp32_precision = "ieee"
        with torch.autocast(device, enabled=False):
            yield
    finally:
        for backend, precision in changed:
            backend.fp32_precision = precision


def as_tall(W: Tensor) -> Tensor:
    """Return W (..., m, n) as a view (B, larger side, smaller side)."""
    flat = W.reshape(-1, *W.shape[-2:])
    return flat.mT if W.shape[-1] > W.shape[-2] else flat


def _initial_norm(X: Tensor, norm_init: str) -> Tensor:
    """Return the norm (B, 1, 1) of X (B, m, n), an upper bound on its singular values (`spectral`: up to rounding)."""
    if norm_init == "frobenius":
        return fro(X)
    if norm_init == "spectral":
        largest: Tensor = torch.linalg.eigvalsh(gram(X.double()))[:, -1]
        return largest.clamp_min(0).sqrt().to(X.dtype)[:, None, None]
    return upper_bound(X, 0 if norm_init == "schatten4" else 2)


def _normalise_and_iterate(W: Tensor, steps: list[Step], norm_init: str, tol: float | None) -> tuple[Tensor, int]:
    """Divide W (..., m, n) by its norm, take the steps, and return the result and how many steps were taken.

    Products are in the matmul precision that is set, see `full_precision`.
    """
    if W.numel() == 0:
        return torch.empty_like(W), 0
    source = as_tall(W)
    size = max(1, CHUNK // (W.shape[-1] * W.shape[-2])) if W.device.type == "cpu" else len(source)
    if len(source) <= size or torch.compiler.is_compiling():
        X, taken = _normalise_and_iterate_chunk(source, steps, norm_init, tol)
        return (X.mT if W.shape[-1] > W.shape[-2] else X).to(W.dtype).reshape(W.shape), taken
    out = torch.empty(W.shape, dtype=W.dtype, device=W.device)
    target, taken = as_tall(out), 0
    for i in range(0, len(source), size):
        X, chunk_taken = _normalise_and_iterate_chunk(source[i : i + size], steps, norm_init, tol)
        target[i : i + size] = X
        taken = max(taken, chunk_taken)
    return out, taken


def _normalise_and_iterate_chunk(W: Tensor, steps: list[Step], norm_init: str, tol: float | None) -> tuple[Tensor, int]:
    """Do what `_normalise_and_iterate` does for tall matrices W (b, m, n) that fit into the caches."""
    if norm_init == "frobenius" and W.device.type == "cpu" and not torch.compiler.is_compiling():
        X = torch.empty(W.shape, dtype=working_dtype(W), device=W.device).copy_(W)
        norm = fro(X)
        low, high = norm.aminmax()
        # For norms of ordinary size `prepare` is left out: it scales by powers of two, which here would change no bit.
        if float(low) > 1e-15 and float(high) < 1e15:
            return iterate(X.div_(norm), steps, tol)
    X = prepare(W)
    norm = _initial_norm(X, norm_init)
    return iterate(X.div_(torch.where(norm > 0, norm, 1)), steps, tol)


def _launch(W: Tensor, out: Tensor) -> Tensor:
    """Call `exact.launch` on matrices of any batch shape and either orientation."""
    if W.numel() == 0:
        return torch.ones(W.shape[:-2].numel(), dtype=torch.bool, device=W.device)
    return exact.launch(as_tall(W), as_tall(out))


def _repair(W: Tensor, X: Tensor, converged: list[bool], init: Tensor | None, seed: int) -> PolarReport:
    """Solve the matrices of W that have not converged again, write them into X, and return the report of `exact`."""
    full_rank = min(W.shape[-2:])
    if all(converged):
        return PolarReport("exact", 0, torch.full(W.shape[:-2], full_rank, dtype=torch.int64, device=W.device))
    ranks = [full_rank] * len(converged)
    source, target = as_tall(W), as_tall(X)
    fillings = None if init is None else as_tall(init)
    for b, has_converged in enumerate(converged):
        if not has_converged:
            target[b], ranks[b] = exact.repair(source[b], None if fillings is None else fillings[b], seed)
    rank = torch.tensor(ranks, dtype=torch.int64, device=W.device).reshape(W.shape[:-2])
    return PolarReport("exact", 0, rank)
