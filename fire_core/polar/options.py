"""The options of all solvers of polar factors, described and checked in one place."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

NORM_INITS = ("frobenius", "spectral", "power", "schatten4")
SOLVERS = ("newton_schulz", "exact", "muon")


@dataclass(frozen=True)
class PolarOptions:
    """The solver of polar factors and its options.

    Attributes:
        solver: `exact`; `newton_schulz` (the paper's); `muon` (the quintic of Jordan et al., 2024, whose singular
            values keep moving within about 0.7 to 1.2: for comparison tables only).
        iterations: steps of `newton_schulz` and `muon`, at least 0.
        norm_init: the norm by which W is divided before the first step of `newton_schulz`. With s the largest singular
            value and n the smaller side: `frobenius` is ||W||_F, as in the paper, which is up to sqrt(n) s and so costs
            up to log_1.5(sqrt(n)) steps. `spectral` is s, by eigenvalues of the Gram matrix in float64. `schatten4` is
            ||W^T W||_F^(1/2), at most n^(1/4) s. `power` is the Schatten norm of order 16, by squaring the Gram matrix
            twice, at most n^(1/16) s; it is an upper bound for every matrix, where a power iteration on a vector would
            give a lower bound.
        tol: stop `newton_schulz` as soon as every matrix handled together has ||X^T X - I||_F^2 <= tol; None takes
            all steps.
        seed: seed of the Gaussian with which `exact` fills null spaces if no initial weights are given.

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
    """Raise a ValueError unless `value` is a number that `accepts` accepts; `words` describe these numbers."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r}: must be a number, {words}")
    if not accepts(value):
        raise ValueError(f"{name}={value}: must be {words}")


def check_seed(seed: Any) -> None:
    """Raise a ValueError for anything but a whole number that torch's generators take."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**64:
        raise ValueError(f"seed={seed!r}: must be a whole number of at most 64 bits")


def check_iterations(iterations: Any) -> None:
    """Raise a ValueError for anything but a whole number from 0 up."""
    if isinstance(iterations, bool) or not isinstance(iterations, Integral) or int(iterations) < 0:
        raise ValueError(f"iterations={iterations!r}: must be a whole number, 0 or more")
