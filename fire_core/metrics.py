"""Distances to isometry and to old weights, ranks, dormancy, sharpness: what the four theorems of FIRE speak of.

Every function says which definition it follows. Matrices are (..., m, n); half precision is computed in float32.
Complex tensors raise ValueError everywhere. Singular values of a NaN or Inf raise torch's LinAlgError; what needs
none of them, `dfi` and `sfe`, is NaN then.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fire_core.polar.factor import full_precision
from fire_core.polar.options import check_number
from fire_core.polar.steps import to_working


def dfi(W: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Deviation from isometry, ||W^T W - I||_F^2, taken on the smaller side (Han et al., ICLR 2026, arXiv 2602.08040).

    Zero if and only if every singular value is `scale`: for m >= n the columns are then orthogonal, for m < n the rows.

    Args:
        W: (..., m, n).
        scale: what W is divided by first. With a row's `scale` this is the DfI that `fire_`'s report, `fire audit`
            and the programs show, each summed over the matrices of a weight.

    Returns:
        (...), at least 0; equals the sum of ((sigma / scale)^2 - 1)^2 over the min(m, n) singular values.

    Raises:
        TypeError: W is no tensor, but a module say.
    """
    if not isinstance(W, Tensor):
        raise TypeError(
            f"dfi takes a weight, not a {type(W).__name__}: print(fire_(copy.deepcopy(model))) shows those of a model"
        )
    W = to_working(W) / scale
    with full_precision(W.device.type):  # also within a training step's autocast
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

    Raises:
        ValueError: the shapes differ.
    """
    if A.shape != B.shape:
        raise ValueError(f"shapes {tuple(A.shape)} and {tuple(B.shape)} differ: sfe compares weight with weight")
    return (to_working(A) - to_working(B)).square().sum((-2, -1))


def alignment(reader: Tensor, writer: Tensor) -> Tensor:
    """How far a layer reads the directions that the layer before it writes most (Ji and Telgarsky, ICLR 2019).

    n ||B A||_F^2 / (||B||_F^2 ||A||_F^2), which is n times the mean of <v_i, u_j>^2 over the right singular vectors of
    the reader B and the left ones of the writer A, weighted by the squares of their singular values. Gradient descent
    on linear networks drives it to n, both matrices having rank one then.

    Args:
        reader: B, (..., k, n).
        writer: A, (..., n, m).

    Returns:
        (...): 1 on average if B and A know nothing of each other, or one of them is a square isometry; at most n.
    """
    B, A = to_working(reader), to_working(writer)
    total = B.square().sum((-2, -1)) * A.square().sum((-2, -1))
    return A.shape[-2] * (B @ A).square().sum((-2, -1)) / total


# ------------------------------------------------------------------------------------------------------------- ranks


def stable_rank(W: Tensor) -> Tensor:
    """||W||_F^2 / ||W||_2^2 (Rudelson and Vershynin, J. ACM 2007): at most the rank, unmoved by tiny singular values.

    Args:
        W: (..., m, n).

    Returns:
        (...), between 1 and min(m, n); 0 for a zero matrix.
    """
    squares = torch.linalg.svdvals(to_working(W)).square()
    top = squares.amax(-1)
    return torch.where(top > 0, squares.sum(-1) / torch.where(top > 0, top, 1), 0)


def effective_rank(W: Tensor) -> Tensor:
    """exp of the entropy of the singular values divided by their sum (Roy and Vetterli, EUSIPCO 2007).

    Args:
        W: (..., m, n).

    Returns:
        (...), between 1 and min(m, n); 0 for a zero matrix.
    """
    values = torch.linalg.svdvals(to_working(W))
    total = values.sum(-1, keepdim=True)
    p = values / torch.where(total > 0, total, 1)
    return torch.where(total[..., 0] > 0, torch.special.entr(p).sum(-1).exp(), 0)


def srank(W: Tensor, delta: float = 0.01) -> Tensor:
    """Fewest singular values that hold 1 - delta of their sum: the effective rank of Kumar et al. (ICLR 2021).

    Args:
        W: (..., m, n); Kumar et al. take the features of a batch, (samples, units).
        delta: the share left out.

    Returns:
        (...) int64; 0 for a zero matrix.

    Raises:
        ValueError: `delta` outside [0, 1).
    """
    check_number("delta", delta, lambda share: 0 <= share < 1, "at least 0 and below 1")
    values = torch.linalg.svdvals(to_working(W))
    total = values.sum(-1, keepdim=True)
    short = values.cumsum(-1) < (1 - delta) * total  # the prefixes that do not hold enough yet
    return torch.where(total[..., 0] > 0, short.sum(-1) + 1, 0)


# ------------------------------------------------------------------------------------------------------- activations


def dormant_scores(activations: Tensor) -> Tensor:
    """ReDo's score of each unit: its mean |activation| divided by the layer's mean (Sokar et al., ICML 2023).

    Args:
        activations: (samples, ..., units), after the nonlinearity; a convolution's (N, C, H, W) has its channels moved
            last, `x.movedim(1, -1)`.

    Returns:
        (units,), mean 1; 0 for every unit of a silent layer.
    """
    size = to_working(activations).abs().flatten(0, -2).mean(0)
    mean = size.mean()
    return size / torch.where(mean > 0, mean, 1)


def dormant(activations: Tensor, threshold: float = 0.0) -> Tensor:
    """Which units of a layer have a score of at most the threshold; see `dormant_scores` and `dormant_ratio`.

    Args:
        activations: (samples, ..., units), as in `dormant_scores`.
        threshold: ReDo's tau.

    Returns:
        (units,) bool.
    """
    return dormant_scores(activations) <= threshold


def dormant_ratio(activations: Iterable[Tensor], threshold: float = 0.0) -> float:
    """Share of the units whose score is at most the threshold, over all layers together (Sokar et al., ICML 2023).

    Args:
        activations: of each layer, as in `dormant_scores`.
        threshold: tau; 0 counts units that are silent on every sample, ReDo's figures use 0 to 0.1.

    Returns:
        Between 0 and 1.

    Raises:
        ValueError: there is no layer.
    """
    layers = list(activations)
    if not layers:
        raise ValueError("there are no activations: dormant_ratio needs those of one layer at least")
    return float(torch.cat([dormant(layer, threshold) for layer in layers]).double().mean())


# --------------------------------------------------------------------------------------------------------- sharpness


def hessian_spectral_norm(
    loss: Callable[[], Tensor],
    params: Sequence[Tensor],
    iterations: int = 100,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
) -> float:
    """Largest |eigenvalue| of the Hessian of a loss, by power iteration on Hessian-vector products.

    One product costs a backward pass through the gradient (Pearlmutter, Neural Computation 1994); the Hessian is never
    formed. The loss must be deterministic: evaluation mode, a fixed batch.

    Args:
        loss: computes the scalar loss from the parameters as they are.
        params: the parameters to differentiate by.
        iterations: at most so many products.
        tol: stop once the estimate moves by less than this, relatively.
        generator: of the start vector, on the parameters' device; None for a fixed seed.

    Returns:
        ||H v|| at the last unit vector v: a lower bound that converges to ||H||_2. 0 for a loss that is linear in them.

    Raises:
        ValueError: none of the parameters requires a gradient.
    """
    params = [p for p in params if p.requires_grad]
    if not params:
        raise ValueError("no parameter requires a gradient: there is no Hessian")
    generator = generator or torch.Generator(params[0].device).manual_seed(0)
    with torch.enable_grad():
        grads = torch.autograd.grad(loss(), params, create_graph=True, materialize_grads=True)
    v = [torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype) for p in params]
    norm, last = _normalise_(v), 0.0
    for _ in range(iterations):
        if not any(g.requires_grad for g in grads):
            return 0.0  # a loss that is linear in its parameters
        Hv = torch.autograd.grad(grads, params, v, retain_graph=True, materialize_grads=True)
        v = [h.detach().clone() for h in Hv]
        norm = _normalise_(v)
        if norm == 0 or abs(norm - last) <= tol * norm:
            break
        last = norm
    return norm


def _normalise_(vector: list[Tensor]) -> float:
    norm = float(torch.stack([part.double().square().sum() for part in vector]).sum().sqrt())
    for part in vector:
        part.div_(norm or 1.0)
    return norm
