"""How large the projected weights are: each singular value's target."""

import math
from collections.abc import Mapping

from torch import Tensor

from fire_core.reinit.initial import initial_of
from fire_core.reinit.project import stack
from fire_core.weights.entry import Entry


def modular(d_out: int, d_in: int, positions: int) -> float:
    """FIRE's scale of a matrix, or of each of the kernel positions of a convolution."""
    return math.sqrt(d_out / d_in) / positions


def scale_of(entry: Entry, scale: str, variance_factor: float, initial: Mapping[str, Tensor]) -> float | Tensor:
    """The factor on the polar factors of an entry, or one for each matrix, (count, 1, 1).

    NaN for `keep_norm`, whose factors follow from the matrices themselves.

    Raises:
        ValueError: the initial weights are missing or zero, and with them the scale.
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
    start = stack([(entry, initial_of(entry, initial))]).double()
    squares = start.square().sum((-2, -1), keepdim=True)  # (count, 1, 1)
    if bool((squares == 0).all() if scale == "match_init" else (squares == 0).any()):
        raise ValueError(f'{entry.name} is zero in init, so scale="{scale}" would erase it: exclude it')
    # An isometry has squared norm min(d_out, d_in).
    if scale == "match_init":
        return math.sqrt(float(squares.mean()) / min(d_out, d_in))
    return (squares / min(d_out, d_in)).sqrt()
