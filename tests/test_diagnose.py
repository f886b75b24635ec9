"""should_reinitialize against singular values by NumPy, and against random matrix theory."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fire_core import should_reinitialize


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error_of(W: Tensor) -> float:
    s = np.linalg.svd(W.double().numpy(), compute_uv=False) ** 2
    return float(np.mean((s / s.mean() - 1) ** 2))


@pytest.mark.parametrize("shape", [(12, 12), (20, 6), (6, 20)])
def test_error_is_the_spread_of_the_squared_singular_values(shape: tuple[int, int]) -> None:
    W = gaussian(*shape)
    for size in (1.0, 1e-2, 1e3):
        assert should_reinitialize(size * W).error == pytest.approx(error_of(W), rel=1e-4)


def test_a_convolution_has_a_matrix_for_each_kernel_position() -> None:
    W = gaussian(8, 5, 3, 2)
    W[:, :, 1, 1] *= 1e-6  # too small to look at
    positions = [W[:, :, i, j] for i in range(3) for j in range(2) if (i, j) != (1, 1)]
    assert should_reinitialize(W).error == pytest.approx(np.mean([error_of(p) for p in positions]), rel=1e-4)
    found = should_reinitialize(1e-6 * W, torch.zeros_like(W))
    assert not found
    assert math.isnan(found.error)


def test_only_what_is_worse_than_it_was_initially_counts() -> None:
    start = gaussian(40, 40)
    worse = start * torch.logspace(0, -2, 40)  # input directions fade
    assert not should_reinitialize(start.clone(), initial=start)
    found = should_reinitialize(worse, initial=start)
    assert found.initial_error == pytest.approx(error_of(start), rel=1e-4)
    assert found.reasons == (
        f"isometry error {found.error:.3g}, more than 0.1 and than {found.initial_error:.3g} initially",
    )


def test_units_without_gradient() -> None:
    isometry = torch.linalg.qr(gaussian(10, 10))[0]
    gradients = torch.ones(10, 10)
    gradients[[2, 7]] = 1e-6
    gradients[4] = 0.1
    assert not should_reinitialize(isometry)
    found = should_reinitialize(isometry, gradients)
    assert found.silent == 0.2
    assert "20.0% of the units" in found.reasons[0]
    assert should_reinitialize(isometry, gradients, tau=0.2).silent == pytest.approx(0.3)
    assert should_reinitialize(isometry, 0 * gradients).silent == 1
    assert not should_reinitialize(isometry, 1e-9 * torch.ones(10, 10)), "alike gradients, however small"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3),), "no matrices"),
        ((torch.zeros(3, 0),), "no matrices"),
        ((torch.ones(3, 3, dtype=torch.int8),), "no matrices"),
        ((torch.full((3, 3), math.inf),), "weights are not finite"),
        ((torch.ones(3, 3), torch.full((3, 3), math.nan)), "gradients are not finite"),
        ((torch.ones(3, 3), torch.ones(3)), r"gradients have shape \(3,\)"),
    ],
)
def test_what_cannot_be_judged_is_refused(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        should_reinitialize(*arguments)
    with pytest.raises(ValueError, match="tau must be at least 0, got -1"):
        should_reinitialize(torch.ones(2, 2), tau=-1)
