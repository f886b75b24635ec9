"""Families of matrices with known spectra, and the truth about their polar factors from float64 SVDs."""

import math
from typing import Any

import torch
from torch import Tensor

from fire_core.polar.factor import PolarReport, solve
from fire_core.polar.options import PolarOptions


def polar(W: Tensor, solver: str = "exact", init: Tensor | None = None, **options: Any) -> tuple[Tensor, PolarReport]:
    """`polar_factor` with its report."""
    return solve(W, PolarOptions(solver, **options), init)


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_spectrum(m: int, n: int, s: Tensor, seed: int = 0) -> Tensor:
    U, V = torch.linalg.qr(gaussian(m, n, seed=seed))[0], torch.linalg.qr(gaussian(n, n, seed=seed + 1))[0]
    return ((U * s) @ V.T).float()


def truth(W: Tensor) -> Tensor:
    U, _, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    return U @ Vh


def dfi64(X: Tensor) -> Tensor:
    X = X.double() if X.shape[-2] >= X.shape[-1] else X.double().mT
    return (X.mT @ X - torch.eye(X.shape[-1], dtype=torch.float64)).square().sum((-2, -1))


def assert_guarantee(W: Tensor, X: Tensor) -> None:
    n = min(W.shape[-2:])
    assert X.shape == W.shape
    assert (torch.linalg.svdvals(X.double()) - 1).abs().max() <= 2e-6
    assert dfi64(X).max() / n <= 1e-11
    assert torch.linalg.matrix_norm(X.double() - truth(W)).max() / math.sqrt(n) <= 1e-5


def spectra(condition: float, n: int) -> dict[str, Tensor]:
    low = 1 / condition
    even = torch.linspace(0, 1, n, dtype=torch.float64)
    return {
        "geometric": low**even,
        "one tiny": torch.where(even < 1, 1.0, low),
        "half tiny": torch.where(even < 0.5, 1.0, low),
        "one large": torch.where(even > 0, low, 1.0),
    }
