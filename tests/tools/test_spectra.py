"""Singular values by way of the Gram matrix, against numpy's decomposition in float64."""

import numpy as np
import pytest
import torch

from fire_core.tools.spectra import finding, singular_values


def matrix(m: int, n: int, condition: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random singular vectors, singular values spaced geometrically from 1 to 1 / condition."""
    generator = torch.Generator().manual_seed(m + n)
    k = min(m, n)
    U, V = (torch.linalg.qr(torch.randn(size, k, generator=generator, dtype=torch.float64))[0] for size in (m, n))
    return (U * torch.logspace(0, -np.log10(condition), k, dtype=torch.float64) @ V.mT).to(dtype)


@pytest.mark.parametrize("shape", [(60, 60), (300, 40), (40, 300)])
@pytest.mark.parametrize(
    ("condition", "precision"), [(1e0, 1e-13), (1e3, 1e-9), (1e5, 1e-5), (9e5, 1e-3), (1e7, 1e-8), (1e9, 1e-6)]
)
def test_precision(shape: tuple[int, int], condition: float, precision: float) -> None:
    W = matrix(*shape, condition)
    wanted = np.linalg.svd(W.numpy(), compute_uv=False)
    np.testing.assert_allclose(singular_values(W).numpy(), wanted, rtol=precision)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_any_size_and_type(dtype: torch.dtype, size: float) -> None:
    W = (matrix(50, 30, 100.0) * size).to(dtype)
    wanted = np.linalg.svd(W.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(singular_values(W).numpy(), wanted, rtol=1e-9)


def test_rank_and_zeros() -> None:
    W = torch.randn(40, 10, dtype=torch.float64) @ torch.randn(10, 30, dtype=torch.float64)
    assert int((singular_values(W) > 1e-12 * singular_values(W)[0]).sum()) == 10
    assert finding("w", W[None], 1.0).condition > 1e12
    assert torch.equal(singular_values(torch.zeros(4, 3)), torch.zeros(3, dtype=torch.float64))
    zero = finding("w", torch.zeros(2, 4, 3), 1.0)
    assert zero.is_zero
    assert not zero.benefits, "a projection leaves a zero matrix as it is"
    assert finding("w", torch.zeros(2, 4, 3), 1.0).effective_rank == 0


def test_long_matrices_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fire_core.tools.spectra.CHUNK", 600)
    for condition in (10.0, 1e8):
        W = matrix(500, 20, condition)
        wanted = np.linalg.svd(W.numpy(), compute_uv=False)
        np.testing.assert_allclose(singular_values(W).numpy(), wanted, rtol=1e-7)
