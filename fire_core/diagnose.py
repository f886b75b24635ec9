"""Compare one weight and its gradient with rules of thumb for when a projection may help."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fire_core.metrics import dfi, dormant_scores
from fire_core.polar.steps import to_working
from fire_core.ranges import NonNegative, checked
from fire_core.weights.distributed import is_sharded

MIN_NORM = 1e-3  # matrices whose Frobenius norm lies below this are left out


@dataclass(frozen=True)
class Diagnosis:
    """The result of `should_reinitialize`; it is true if there is a reason for a projection.

    Attributes:
        error: isometry error of the weight: the mean over its singular values of (sigma^2 / mean sigma^2 - 1)^2. It is
            0 for a scaled isometry of any size, and NaN if every matrix is too small to be measured.
        initial_error: isometry error of the initial weights; NaN if they were not given.
        silent: share of the units with next to no gradient; NaN if no gradient was given.
        reasons: the reasons for a projection, one line each.
    """

    error: float
    initial_error: float
    silent: float
    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.reasons)


@torch.no_grad()
@checked
def should_reinitialize(
    weights: Tensor,
    gradients: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    max_error: NonNegative = 0.1,
    tau: NonNegative = 0.025,
) -> Diagnosis:
    """Return whether FIRE might help a weight: it is far from an isometry, or has units that no gradient reaches.

    **These are rules of thumb.** The FIRE paper has no such test: it projects at every boundary. No experiment that we
    know of shows that these thresholds tell when a projection pays. They are taken from practitioners' guides to FIRE
    and applied to what can be measured before a projection. One guide calls an error above 0.1 a warning sign *after* a
    projection, skips small matrices as `MIN_NORM` does, and says "gradients near zero" without a number; another takes
    0.025 for ReDo's score of activations. A freshly drawn Gaussian m x n matrix has an error of about
    min(m, n) / max(m, n) (Marchenko and Pastur, 1967), so that square weights exceed 0.1 from the start: give
    `initial`, and only an error larger than the initial one counts. The gradient of one batch is noisy: accumulate
    several.

    Args:
        weights: (d_out, d_in) or (c_out, c_in, *kernel), as Linear and convolutions store them; each kernel position is
            a matrix of its own.
        gradients: `weight.grad`, of the same shape; None leaves the units out.
        initial: the weights as they were initialised, of the same shape.
        max_error: largest isometry error that is no reason for a projection, see `Diagnosis.error`.
        tau: largest score of a silent unit. The score is the unit's mean |gradient| divided by its layer's mean, as in
            ReGraMa (arXiv 2505.24061).

    Returns:
        A `Diagnosis`: `if should_reinitialize(p, p.grad): ...`; `.reasons` says why.

    Raises:
        ValueError: a tensor is no matrix, holds NaN or Inf or has another shape than `weights`, or a threshold is out
            of range.
    """
    for name, tensor in (("weights", weights), ("gradients", gradients), ("initial", initial)):
        if tensor is None:
            continue
        if is_sharded(tensor):
            raise ValueError(f"{name} are sharded over processes: give .full_tensor() of them")
        if tensor.shape != weights.shape:
            raise ValueError(f"{name} have shape {tuple(tensor.shape)}, weights {tuple(weights.shape)}")
        if tensor.ndim < 2 or not tensor.numel() or not tensor.is_floating_point():
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype} are no matrices of real numbers"
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} are not finite")
    error = _isometry_error(weights, MIN_NORM)
    initial_error = math.nan if initial is None else _isometry_error(initial, 0.0)
    silent = math.nan
    if gradients is not None:
        silent = float((dormant_scores(gradients.flatten(1).T) <= tau).double().mean())
    reasons = []
    is_worse_than_initially = not error <= initial_error  # true if `initial` is None: no number is <= NaN
    if error > max_error and is_worse_than_initially:
        limit = f"{max_error:g}" if initial is None else f"{max_error:g} and than {initial_error:.3g} initially"
        reasons.append(f"isometry error {error:.3g}, more than {limit}")
    if silent > 0 and not math.isnan(error):
        reasons.append(f"{silent:.1%} of the units have next to no gradient (score at most {tau:g})")
    return Diagnosis(error, initial_error, silent, tuple(reasons))


def _isometry_error(weights: Tensor, min_norm: float) -> float:
    """Return `Diagnosis.error` over the matrices whose norm is at least `min_norm`; NaN if there is none."""
    matrices = to_working(weights).flatten(2).movedim(-1, 0) if weights.ndim > 2 else to_working(weights)[None]
    norms = torch.linalg.matrix_norm(matrices)  # (k,) of the k matrices (k, d_out, d_in)
    large = (norms >= min_norm) & (norms > 0)
    rms_singular_value = norms[large] / math.sqrt(min(weights.shape[:2]))
    return float(dfi(matrices[large] / rms_singular_value[:, None, None]).mean() / min(weights.shape[:2]))
