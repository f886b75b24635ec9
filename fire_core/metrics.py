"""The quantities of FIRE's four theorems: distance to isometry and to old weights, ranks, dormancy, sharpness.

Every function says which definition it follows. Matrices are (..., m, n); half precision is computed in float32.
Complex tensors raise ValueError everywhere. If a matrix holds NaN or Inf, functions that need its singular values raise
torch's LinAlgError; `dfi` and `sfe`, which do not, return NaN.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from fire_core.polar.factor import full_precision
from fire_core.polar.options import check_number
from fire_core.polar.steps import to_working
from fire_core.weights.distributed import full


def dfi(W: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Return the deviation from isometry, ||W^T W - I||_F^2, for m < n ||W W^T - I||_F^2 (Han et al., ICLR 2026).

    It is zero if and only if every singular value is `scale`: the columns are then orthogonal if m >= n, the rows if
    m < n. Source: arXiv 2602.08040.

    Args:
        W: (..., m, n).
        scale: number by which W is divided first. With the `scale` of a row, this is the DfI in `fire_`'s report,
            `fire audit` and the programs, which sum it over the matrices of a weight.

    Returns:
        (...), at least 0; equals the sum of ((sigma / scale)^2 - 1)^2 over the min(m, n) singular values.

    Raises:
        TypeError: W is no tensor (but a module, for example).
        ValueError: W has fewer than two dimensions.
    """
    _check_matrices("dfi", W)
    W = to_working(full(W)) / scale
    with full_precision(W.device.type):  # the call may come from within a training step's autocast
        gram = W.mT @ W if W.shape[-2] >= W.shape[-1] else W @ W.mT
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return gram.square().sum((-2, -1))


def _check_matrices(function: str, W: object) -> None:
    """Refuse what holds no matrices, such as a module or a bias.

    Raises:
        TypeError: W is no tensor; the message names the function.
        ValueError: it has fewer than two dimensions; likewise.
    """
    if not isinstance(W, Tensor):
        is_shown = function == "dfi" and isinstance(W, nn.Module)
        hint = ": print(fire_(copy.deepcopy(model))) shows those of a model" if is_shown else ""
        raise TypeError(f"{function} takes a weight, (..., m, n), not a {type(W).__name__}{hint}")
    if W.ndim < 2:
        raise ValueError(f"{function} takes matrices, (..., m, n), and got a tensor of shape {tuple(W.shape)}")


def sfe(A: Tensor, B: Tensor) -> Tensor:
    """Return the squared Frobenius error ||A - B||_F^2 (Han et al., ICLR 2026): how far weights have moved.

    Args:
        A: (..., m, n).
        B: (..., m, n).

    Returns:
        (...), one number for each matrix.

    Raises:
        ValueError: the shapes differ, or have fewer than two dimensions.
    """
    _check_matrices("sfe", A)
    if A.shape != B.shape:
        raise ValueError(f"shapes {tuple(A.shape)} and {tuple(B.shape)} differ: sfe compares weight with weight")
    return (to_working(full(A)) - to_working(full(B))).square().sum((-2, -1))


def alignment(reader: Tensor, writer: Tensor) -> Tensor:
    """Return how much a layer reads the directions that the layer before it writes most (Ji and Telgarsky, ICLR 2019).

    It is n ||B A||_F^2 / (||B||_F^2 ||A||_F^2): n times the mean of <v_i, u_j>^2 over the right singular vectors of the
    reader B and the left ones of the writer A, weighted by the squares of their singular values. Gradient descent on
    linear networks drives it to n, where both matrices have rank one.

    Args:
        reader: B, (..., k, n).
        writer: A, (..., n, m).

    Returns:
        (...), at most n. It is 1 on average if B and A are independent, and 1 if one of them is a square isometry. NaN
        if one of them is zero.

    Raises:
        ValueError: a matrix has fewer than two dimensions.
    """
    for weight in (reader, writer):
        _check_matrices("alignment", weight)
    B, A = to_working(reader), to_working(writer)
    total = B.square().sum((-2, -1)) * A.square().sum((-2, -1))
    return A.shape[-2] * (B @ A).square().sum((-2, -1)) / total


# ------------------------------------------------------------------------------------------------------------- ranks


def stable_rank(W: Tensor) -> Tensor:
    """Return the stable rank ||W||_F^2 / ||W||_2^2 (Rudelson and Vershynin, J. ACM 2007).

    It is at most the rank, and tiny singular values hardly change it.

    Args:
        W: (..., m, n).

    Returns:
        (...), between 1 and min(m, n); 0 for a zero matrix.

    Raises:
        TypeError: W is no tensor.
        ValueError: W has fewer than two dimensions.
    """
    _check_matrices("stable_rank", W)
    squares = torch.linalg.svdvals(to_working(W)).square()
    largest = squares.amax(-1)
    return torch.where(largest > 0, squares.sum(-1) / torch.where(largest > 0, largest, 1), 0)


def effective_rank(W: Tensor) -> Tensor:
    """Return exp of the entropy of the singular values divided by their sum (Roy and Vetterli, EUSIPCO 2007).

    Args:
        W: (..., m, n).

    Returns:
        (...), between 1 and min(m, n); 0 for a zero matrix.

    Raises:
        TypeError: W is no tensor.
        ValueError: W has fewer than two dimensions.
    """
    _check_matrices("effective_rank", W)
    values = torch.linalg.svdvals(to_working(W))
    total = values.sum(-1, keepdim=True)
    p = values / torch.where(total > 0, total, 1)
    return torch.where(total[..., 0] > 0, torch.special.entr(p).sum(-1).exp(), 0)


def srank(W: Tensor, delta: float = 0.01) -> Tensor:
    """Return the fewest singular values that make up 1 - delta of their sum: the effective rank of Kumar et al., 2021.

    Args:
        W: (..., m, n); Kumar et al. (ICLR 2021) take the features of a batch, (samples, units).
        delta: the share of the sum that is left out.

    Returns:
        (...) int64; 0 for a zero matrix.

    Raises:
        TypeError: W is no tensor.
        ValueError: `delta` outside [0, 1), or W has fewer than two dimensions.
    """
    _check_matrices("srank", W)
    check_number("delta", delta, lambda share: 0 <= share < 1, "at least 0 and below 1")
    values = torch.linalg.svdvals(to_working(W))
    total = values.sum(-1, keepdim=True)
    not_enough = values.cumsum(-1) < (1 - delta) * total  # whether the first k+1 singular values are too few
    enough = (not_enough.sum(-1) + 1).clamp(max=values.shape[-1])  # the last of the sums may be rounded below the total
    return torch.where(total[..., 0] > 0, enough, 0)


# ------------------------------------------------------------------------------------------------------- activations


def dormant_scores(activations: Tensor) -> Tensor:
    """Return ReDo's score of each unit: its mean |activation| divided by the layer's mean (Sokar et al., ICML 2023).

    Args:
        activations: (samples, ..., units), after the nonlinearity. For a convolution's (N, C, H, W) move the channels
            last, `x.movedim(1, -1)`.

    Returns:
        (units,), with a mean of 1; all 0 if the whole layer is silent.

    Raises:
        TypeError: `activations` is no tensor.
        ValueError: it has fewer than two dimensions.
    """
    if not isinstance(activations, Tensor):
        raise TypeError(
            f"one layer's activations are a tensor, (samples, ..., units), not a {type(activations).__name__}"
        )
    if activations.ndim < 2:
        raise ValueError(f"activations are (samples, ..., units), and got a tensor of shape {tuple(activations.shape)}")
    magnitudes = to_working(activations).abs().flatten(0, -2).mean(0)  # (units,)
    mean = magnitudes.mean()
    return magnitudes / torch.where(mean > 0, mean, 1)


def dormant(activations: Tensor, threshold: float = 0.0) -> Tensor:
    """Return which units of a layer have a score of at most the threshold; see `dormant_scores`.

    Args:
        activations: (samples, ..., units), as in `dormant_scores`.
        threshold: ReDo's tau, the largest score of a dormant unit.

    Returns:
        (units,) bool.
    """
    return dormant_scores(activations) <= threshold


def dormant_ratio(activations: Iterable[Tensor], threshold: float = 0.0) -> float:
    """Return the share of dormant units over all layers together (Sokar et al., ICML 2023).

    Args:
        activations: the activations of each layer, as in `dormant_scores`.
        threshold: ReDo's tau, the largest score of a dormant unit. 0 counts units that are silent on every sample;
            ReDo's figures use 0 to 0.1.

    Returns:
        A share between 0 and 1; NaN if an activation is not finite, or there is no sample.

    Raises:
        TypeError: `activations` is a single tensor, whose samples would be taken for layers.
        ValueError: there is no layer.
    """
    if isinstance(activations, Tensor):
        raise TypeError("dormant_ratio takes the activations of each layer in a list: dormant_ratio([activations])")
    layers = list(activations)
    if not layers:
        raise ValueError("there are no activations: dormant_ratio needs those of one layer at least")
    if not all(layer.numel() and bool(layer.isfinite().all()) for layer in layers):
        return math.nan
    return float(torch.cat([dormant(layer, threshold) for layer in layers]).double().mean())


# --------------------------------------------------------------------------------------------------------- sharpness


def hessian_spectral_norm(
    loss: Callable[[], Tensor],
    params: Sequence[Tensor],
    iterations: int = 100,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
) -> float:
    """Return the largest |eigenvalue| of the Hessian of a loss, by power iteration on Hessian-vector products.

    One product costs a backward pass through the gradient (Pearlmutter, Neural Computation 1994); the Hessian is never
    formed. The loss must be deterministic: evaluation mode, a fixed batch.

    Args:
        loss: computes the scalar loss from the present values of the parameters.
        params: the parameters to differentiate by.
        iterations: largest number of products.
        tol: stop once the estimate changes by less than this share of itself.
        generator: draws the start vector, on the parameters' device; None takes a fixed seed.

    Returns:
        ||H v|| at the last unit vector v: a lower bound that converges to ||H||_2. It is 0 for a loss that is linear in
        the parameters.

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
    norm, last_norm = _normalise_(v), 0.0
    for _ in range(iterations):
        # The gradient by a parameter in which the loss is linear is constant.
        varying = [(g, part) for g, part in zip(grads, v, strict=True) if g.requires_grad]
        if not varying:
            return 0.0
        outputs, vectors = zip(*varying, strict=True)
        Hv = torch.autograd.grad(outputs, params, vectors, retain_graph=True, materialize_grads=True)
        v = [h.detach().clone() for h in Hv]
        norm = _normalise_(v)
        if norm == 0 or abs(norm - last_norm) <= tol * norm:
            break
        last_norm = norm
    return norm


def _normalise_(vector: list[Tensor]) -> float:
    """Divide a vector, given in parts, by its norm, in place, and return the norm."""
    norm = float(torch.stack([part.double().square().sum() for part in vector]).sum().sqrt())
    for part in vector:
        part.div_(norm or 1.0)
    return norm
