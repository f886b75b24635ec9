"""Is a weight due for a projection? What one weight and its gradient can say, against rules of thumb."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fire_core.metrics import dfi, dormant_scores
from fire_core.polar.steps import to_working
from fire_core.ranges import NonNegative, checked

MIN_NORM = 1e-3  # matrices whose Frobenius norm lies below this are not looked at


@dataclass(frozen=True)
class Diagnosis:
    """What `should_reinitialize` found; it is true where something speaks for a projection.

    Attributes:
        error: mean over the singular values of (sigma^2 / mean sigma^2 - 1)^2: DfI of the weight divided by its root
            mean square singular value, a singular value. 0 for a scaled isometry of any size; NaN if every matrix is
            too small to look at.
        initial_error: the same of the initial weights; NaN if they were not given.
        silent: share of the units with next to no gradient; NaN if no gradient was given.
        reasons: what speaks for a projection, one line each.
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
    """Whether a weight looks as if FIRE could help: far from an isometry, or with units that no gradient reaches.

    **These are rules of thumb.** The FIRE paper asks no such question, it projects at every boundary, and no experiment
    that we know of shows that these thresholds tell when a projection pays. They are those that practitioners' guides
    to FIRE give, applied to what can be measured before a projection. One calls an error above 0.1 a warning sign
    *after* a projection, skips small matrices as `MIN_NORM` does, and says "gradients near zero" without a number;
    another takes 0.025 for ReDo's score of activations. A freshly drawn Gaussian m x n matrix has an error of about
    min(m, n) / max(m, n) (Marchenko and Pastur, 1967), so square weights exceed 0.1 from the start: give `initial`, and
    only an error larger than theirs counts. One batch's gradient is noisy: accumulate several.

    Args:
        weights: (d_out, d_in) or (c_out, c_in, *kernel), as Linear and convolutions store them; a matrix for each
            kernel position.
        gradients: of the same shape, `weight.grad`; None leaves the units out.
        initial: the weights as they were initialised, of the same shape.
        max_error: largest isometry error that is no reason, see `Diagnosis.error`.
        tau: largest score of a silent unit: its mean |gradient| over its layer's, as in ReGraMa (arXiv 2505.24061).

    Returns:
        A `Diagnosis`: `if should_reinitialize(p, p.grad): ...`; `.reasons` says why.

    Raises:
        ValueError: no matrix, a NaN or Inf, shapes that differ, a threshold out of its range.
    """
    for name, tensor in (("weights", weights), ("gradients", gradients), ("initial", initial)):
        if tensor is None:
            continue
        if tensor.shape != weights.shape:
            raise ValueError(f"{name} have shape {tuple(tensor.shape)}, weights {tuple(weights.shape)}")
        if tensor.ndim < 2 or not tensor.numel() or not tensor.is_floating_point():
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype} are no matrices of real numbers"
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} are not finite")
    error, before = _error(weights, MIN_NORM), math.nan if initial is None else _error(initial, 0.0)
    silent = math.nan
    if gradients is not None:
        silent = float((dormant_scores(gradients.flatten(1).T) <= tau).double().mean())
    reasons = []
    if error > max_error and not error <= before:
        than = f"{max_error:g}" if initial is None else f"{max_error:g} and than {before:.3g} initially"
        reasons.append(f"isometry error {error:.3g}, more than {than}")
    if silent > 0 and not math.isnan(error):
        reasons.append(f"{silent:.1%} of the units have next to no gradient (score at most {tau:g})")
    return Diagnosis(error, before, silent, tuple(reasons))


def _error(weights: Tensor, min_norm: float) -> float:
    """Isometry error of the matrices that are large enough, each in units of its own size; NaN if none is."""
    matrices = to_working(weights).flatten(2).movedim(-1, 0) if weights.ndim > 2 else to_working(weights)[None]
    norms = torch.linalg.matrix_norm(matrices)  # (k,) of (k, d_out, d_in)
    large = (norms >= min_norm) & (norms > 0)
    size = norms[large] / math.sqrt(min(weights.shape[:2]))
    return float(dfi(matrices[large] / size[:, None, None]).mean() / min(weights.shape[:2]))
