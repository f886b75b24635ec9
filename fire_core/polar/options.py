"""How to compute a polar factor: the options of every function in `factor`, described and checked once."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

NORM_INITS = ("frobenius", "spectral", "power", "schatten4")
SOLVERS = ("newton_schulz", "exact", "muon")


@dataclass(frozen=True)
class PolarOptions:
    """How to compute polar factors.

    Attributes:
        solver: `exact`; `newton_schulz` (the paper's); `muon` (the quintic of Jordan et al., 2024, whose singular
            values keep moving within about 0.7 to 1.2: for comparison tables only).
        iterations: steps of `newton_schulz` and `muon`, at least 0.
        norm_init: what W is divided by before the first step of `newton_schulz`. `frobenius`: ||W||_F, as in the
            paper; up to log_1.5(sqrt(n)) steps late. `spectral`: the largest singular value, by eigenvalues of the
            Gram matrix in float64. `schatten4`: ||W^T W||_F^(1/2), at most n^(1/4) above it. `power`: the Schatten
            norm of order 16, by squaring the Gram matrix twice: at most n^(1/16) above it, an upper bound for
            every matrix (a power iteration on a vector would bound it from below).
        tol: stop `newton_schulz` as soon as every matrix handled together has ||X^T X - I||_F^2 <= tol; None takes
            all steps.
        seed: of the Gaussian with which `exact` fills null spaces where no initial weights do.

    Raises:
        ValueError: an unknown word, or a number out of range.
    """

    solver: str = "exact"
    iterations: int = 10
    norm_init: str = "frobenius"
    tol: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_word("solver", self.solver, SOLVERS)
        check_word("norm_init", self.norm_init, NORM_INITS)
        check_iterations(self.iterations)
        check_seed(self.seed)
        if self.tol is not None:
            check_number("tol", self.tol, lambda tol: tol >= 0, "0 or more, or None")
        if self.tol is not None and self.solver != "newton_schulz":
            raise ValueError(f"tol={self.tol} needs solver=newton_schulz, not solver={self.solver}")


def check_word(name: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raise a ValueError that lists the accepted words."""
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{name}={value} is unknown; accepted: {', '.join(accepted)}")


def check_number(name: str, value: Any, accepts: Callable[[Any], bool], words: str) -> None:
    """Raise a ValueError for anything but a number that `accepts` takes; `words` say which those are."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r}: must be a number, {words}")
    if not accepts(value):
        raise ValueError(f"{name}={value}: must be {words}")


def check_seed(seed: Any) -> None:
    """Raise a ValueError for anything but a whole number that torch's generators take."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**64:
        raise ValueError(f"seed={seed!r}: must be a whole number of at most 64 bits")


def check_iterations(iterations: int) -> None:
    """Raise a ValueError for anything but a whole number from 0 up."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 0:
        raise ValueError(f"iterations={iterations!r}: must be a whole number, 0 or more")
