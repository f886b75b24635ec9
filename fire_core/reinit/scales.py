"""The scale of projected weights: the value that every singular value is to have."""

import math
from collections.abc import Mapping

from torch import Tensor

from fire_core.reinit.initial import require_initial_value
from fire_core.reinit.project import stack
from fire_core.weights.entry import Entry


def modular(d_out: int, d_in: int, positions: int) -> float:
    """Return FIRE's scale of a matrix (positions = 1), or of the matrix at each kernel position of a convolution."""
    return math.sqrt(d_out / d_in) / positions


def scale_of(entry: Entry, scale: str, variance_factor: float, initial: Mapping[str, Tensor]) -> float | Tensor:
    """Return the factor on the polar factors of an entry.

    Args:
        entry: the matrices of a weight.
        scale: name of the scale, see `fire_`.
        variance_factor: see `fire_`.
        initial: initial weights, see `initial_weights`; only `match_init` and `init_norm` need them.

    Returns:
        One factor for all matrices; for `init_norm` one for each, (count, 1, 1). For `keep_norm`, whose factors follow
        from the matrices themselves, NaN.

    Raises:
        ValueError: the initial weights are missing or zero, so that they give no scale.
    """
    d_out, d_in = entry.shape
    if scale == "orthogonal" or 0 in (d_out, d_in):
        return 1.0
    if scale == "modular":
        return modular(d_out, d_in, entry.positions)
    if scale == "variance_factor":
        return math.sqrt(variance_factor * max(d_out, d_in) / (d_in * entry.positions))
    if scale == "keep_norm":
        return math.nan
    matrices = stack([(entry, require_initial_value(entry, initial))]).double()
    squares = matrices.square().sum((-2, -1), keepdim=True)  # (count, 1, 1)
    if bool((squares == 0).all() if scale == "match_init" else (squares == 0).any()):
        raise ValueError(f'{entry.name} is zero in init, so scale="{scale}" would erase it: exclude it')
    # An isometry has squared norm min(d_out, d_in).
    if scale == "match_init":
        return math.sqrt(float(squares.mean()) / min(d_out, d_in))
    return (squares / min(d_out, d_in)).sqrt()
