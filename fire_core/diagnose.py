"""Is a weight due for a projection? What one weight and its gradient can say, against rules of thumb."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fire_core.metrics import dfi
from fire_core.polar.steps import to_working


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
def should_reinitialize(
    weights: Tensor,
    gradients: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    max_error: float = 0.1,
    tau: float = 0.025,
    max_silent: float = 0.0,
    min_norm: float = 1e-3,
) -> Diagnosis:
    """Whether a weight looks as if FIRE could help: far from an isometry, or with units that no gradient reaches.

    **These are rules of thumb.** The FIRE paper asks no such question, it projects at every boundary, and no experiment
    that we know of shows that these thresholds tell when a projection pays. They are those that practitioners' guides
    to FIRE give, applied to what can be measured before a projection:

    - `min_norm`, 1e-3: smaller matrices are skipped, as one such guide does (`min_weight_norm`).
    - `max_error`, 0.1: that guide calls a larger orthogonality error a warning sign *after* a projection, and less than
      0.01 healthy. Here it is taken of the weight as it is, in units of its own size. A freshly drawn Gaussian m x n
      matrix has about min(m, n) / max(m, n) (Marchenko and Pastur, 1967), so square weights exceed 0.1 from the start:
      give `initial`, and only an error larger than theirs counts.
    - `tau`, 0.025: the guide says "gradients near zero" without a number. The score is that of ReGraMa (arXiv
      2505.24061, which takes 0.01): a unit's mean |gradient| over its layer's. 0.025 is what another guide takes for
      ReDo's score of activations. One batch's gradient is noisy: accumulate several.
    - `max_silent`, 0: no guide says how many such units are too many. One counts, unless you allow for more.

    Args:
        weights: (d_out, d_in) or (c_out, c_in, *kernel), as Linear and convolutions store them; a matrix for each
            kernel position.
        gradients: of the same shape, `weight.grad`; None leaves the units out.
        initial: the weights as they were initialised, of the same shape.
        max_error: largest isometry error that is no reason, see `Diagnosis.error`.
        tau: largest score of a silent unit.
        max_silent: share of silent units that is no reason, in [0, 1].
        min_norm: matrices whose Frobenius norm lies below this are not looked at.

    Returns:
        A `Diagnosis`: `if should_reinitialize(p, p.grad): ...`; `.reasons` says why.

    Raises:
        ValueError: no matrix, a NaN or Inf, shapes that differ, a threshold out of its range.
    """
    for name, value in (("max_error", max_error), ("tau", tau), ("max_silent", max_silent), ("min_norm", min_norm)):
        if not value >= 0:
            raise ValueError(f"{name}={value}: must be 0 or more")
    for name, tensor in (("weights", weights), ("gradients", gradients), ("initial", initial)):
        _check(name, tensor, weights.shape)
    error, before = _error(weights, min_norm), math.nan if initial is None else _error(initial, 0.0)
    silent = math.nan if gradients is None else _silent(gradients, tau)
    reasons = []
    if error > max_error and not error <= before:
        than = f"{max_error:g}" if initial is None else f"{max_error:g} and than {before:.3g} initially"
        reasons.append(f"isometry error {error:.3g}, more than {than}")
    if silent > max_silent and not math.isnan(error):
        reasons.append(f"{silent:.1%} of the units have next to no gradient (score at most {tau:g})")
    return Diagnosis(error, before, silent, tuple(reasons))


def _check(name: str, tensor: Tensor | None, shape: torch.Size) -> None:
    if tensor is None:
        return
    if tensor.shape != shape:
        raise ValueError(f"{name} have shape {tuple(tensor.shape)}, weights {tuple(shape)}")
    if tensor.ndim < 2 or not tensor.numel() or not tensor.is_floating_point():
        raise ValueError(f"{name} of shape {tuple(shape)} and {tensor.dtype} are no matrices of real numbers")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} are not finite")


def _error(weights: Tensor, min_norm: float) -> float:
    """Isometry error of the matrices that are large enough, each in units of its own size; NaN if none is."""
    matrices = to_working(weights)
    matrices = matrices.flatten(2).movedim(-1, 0) if weights.ndim > 2 else matrices[None]  # (k, d_out, d_in)
    norms = torch.linalg.matrix_norm(matrices)
    large = (norms >= min_norm) & (norms > 0)
    size = norms[large] / math.sqrt(min(weights.shape[:2]))
    return float(dfi(matrices[large] / size[:, None, None]).mean() / min(weights.shape[:2]))


def _silent(gradients: Tensor, tau: float) -> float:
    size = to_working(gradients).flatten(1).abs().mean(1)
    mean = size.mean()
    scores = size / torch.where(mean > 0, mean, 1)
    return float((scores <= tau).double().mean())
