"""Polar factors against a float64 SVD, over families of matrices."""

import math

import pytest
import torch

from fire_core.polar import exact
from fire_core.polar.factor import (
    NonFiniteError,
    newton_schulz,
    polar_factor,
)
from fire_core.polar.steps import prepare
from tests.polar.families import assert_guarantee, dfi64, gaussian, polar, spectra, truth, with_spectrum

# ------------------------------------------------------------------------------------------------------ exact


@pytest.mark.parametrize(
    "shape",
    [(64, 64), (3, 96, 96), (160, 128), (128, 160), (300, 40), (40, 300), (2, 3, 17, 30), (1, 7), (7, 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_on_gaussians(shape, dtype):
    W = gaussian(*shape).to(dtype)
    X, report = polar(W)
    assert X.dtype == dtype
    assert_guarantee(W, X)
    if dtype == torch.float64:
        assert dfi64(X).max() < 1e-22
    assert report.rank.shape == shape[:-2]
    assert (report.rank == min(shape[-2:])).all()


@pytest.mark.parametrize("condition", [1e2, 1e4, 9e5])
@pytest.mark.parametrize("shape", [(96, 96), (110, 96), (400, 48)])
def test_exact_keeps_its_promise_up_to_condition_one_million(condition, shape):
    for seed, s in enumerate(spectra(condition, shape[1]).values()):
        W = with_spectrum(*shape, s, seed=10 * seed)
        X, report = polar(W)
        assert_guarantee(W, X)
        assert int(report.rank) == shape[1]
        assert_guarantee(W.T, polar_factor(W.T))


@pytest.mark.parametrize("condition", [1e2, 1e3])
def test_the_fast_routes_arrive_by_themselves(condition):
    """Without this, everything could fall back to the SVD and the tests above still pass."""
    for shape in [(96, 96), (200, 48)]:
        for s in spectra(condition, shape[1]).values():
            W = with_spectrum(*shape, s)[None]
            out = torch.empty_like(W)
            assert exact.launch(W, out).all()
            assert_guarantee(W, out)
            X, fine = exact.matmul_only(prepare(W))  # what a GPU runs
            assert fine.all()
            assert_guarantee(W, X)


def test_the_gpu_route_knows_when_it_has_not_arrived():
    W = with_spectrum(64, 64, spectra(1e6, 64)["half tiny"])[None]
    X, fine = exact.matmul_only(prepare(W))
    assert not fine.any()
    assert dfi64(X) > 1


def test_a_batch_on_several_threads_is_right():
    """torch 2.15 solves batches wrongly on two threads from n = 160; one matrix at a time is right."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        W = gaussian(2, 160, 160).float()
        assert_guarantee(W, polar_factor(W))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("power", [-100, 100])
@pytest.mark.parametrize("solver", ["exact", "newton_schulz", "muon"])
@pytest.mark.parametrize("shape", [(20, 20), (50, 20)])
def test_the_norm_does_not_matter(power, solver, shape):
    """Entries near 1e-30 or 1e30: their squares under- and overflow in float32."""
    W = gaussian(*shape).float()
    assert torch.equal(polar_factor(W * 2.0**power, solver), polar_factor(W, solver))


@pytest.mark.parametrize("solver", ["exact", "newton_schulz", "muon"])
@pytest.mark.parametrize("shape", [(0, 4, 4), (3, 0, 4), (3, 4, 0), (0, 0)])
def test_empty(solver, shape):
    W = torch.empty(shape)
    X, report = polar(W, solver)
    assert X.shape == shape
    assert report.solver == solver


def test_exact_is_deterministic_and_leaves_its_input_alone():
    W = gaussian(4, 50, 50).float()
    W[2, :, 0] = 0
    before = W.clone()
    first, second = polar_factor(W), polar_factor(W)
    assert torch.equal(first, second)
    assert torch.equal(W, before)
    assert polar_factor(torch.eye(3)).data_ptr() != torch.eye(3).data_ptr()


# ------------------------------------------------------------------------------------------ rank and bad input


@pytest.mark.parametrize("shape", [(48, 48), (80, 48), (48, 80)])
@pytest.mark.parametrize("with_init", [True, False])
def test_rank_deficient_matrices_are_completed(shape, with_init):
    rank = 20
    W = (gaussian(shape[0], rank) @ gaussian(rank, shape[1], seed=1)).float()
    init = gaussian(*shape, seed=2).float() if with_init else None
    X, report = polar(W, init=init)
    assert int(report.rank) == rank
    assert dfi64(X) / min(shape) <= 1e-11
    U, _, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    U, Vh = U[:, :rank], Vh[:rank]
    kept = U @ Vh
    # On what W reaches, X is W's own polar factor ...
    torch.testing.assert_close(X.double() @ Vh.T, U, rtol=0, atol=1e-5)
    if init is not None:
        # ... and the rest is the nearest isometry to init between the complements: Z^T X there is positive.
        Z = init.double() - U @ (U.T @ init.double())
        Z = Z - (Z @ Vh.T) @ Vh
        filled = X.double() - kept
        expected = Z.norm(p="nuc")
        torch.testing.assert_close((Z * filled).sum(), expected, rtol=1e-4, atol=0)


def test_completion_does_not_depend_on_the_basis_of_the_null_space():
    W = gaussian(30, 30).float()
    W[:, 10:] = 0
    init = gaussian(30, 30, seed=3).float()
    torch.testing.assert_close(polar_factor(W, init=init), polar_factor(2 * W, init=init), rtol=0, atol=1e-6)
    assert not torch.allclose(polar_factor(W, seed=0), polar_factor(W, seed=1), atol=1e-2)


def test_zero_and_dead_rows():
    W = gaussian(3, 16, 24).float()
    W[0] = 0
    W[1, 3:7] = 0
    init = gaussian(3, 16, 24, seed=4).float()
    X, report = polar(W, init=init)
    assert report.rank.tolist() == [0, 12, 16]
    assert dfi64(X).max() / 16 <= 1e-11
    torch.testing.assert_close(X[0].double(), truth(init[0]), rtol=0, atol=1e-5)
    assert_guarantee(W[2], X[2])
    # An init that is dead in the same rows says nothing there: a Gaussian does.
    init[1, 3:7] = 0
    assert dfi64(polar_factor(W, init=init)).max() / 16 <= 1e-11
    assert torch.equal(newton_schulz(W)[0], torch.zeros(16, 24))


@pytest.mark.parametrize("n", [24, 64])
@pytest.mark.parametrize(("smallest", "missing"), [(1e-8, 1), (2e-7, 1), (6e-7, 0)])
def test_the_rank_counts_singular_values_above_the_threshold(n, smallest, missing):
    """No route may take a singular value below 2.4e-7 of the largest to 1 as if it were one."""
    s = torch.ones(n, dtype=torch.float64)
    s[-1] = smallest
    W = with_spectrum(n, n, s)
    assert (torch.linalg.svdvals(W.double()) > 2.4e-7).sum() == n - missing
    assert int(polar(W)[1].rank) == n - missing


def test_float64_is_exact_to_rounding():
    """Against the factors that the matrix was made of."""
    U, V = (torch.linalg.qr(gaussian(40, 40, seed=seed))[0] for seed in (0, 1))
    for condition in (10.0, 1e3, 9e4):
        W = (U * torch.logspace(0, -math.log10(condition), 40, dtype=torch.float64)) @ V.T
        assert torch.linalg.matrix_norm(polar_factor(W) - U @ V.T) < 1e-14 * condition


@pytest.mark.parametrize("solver", ["exact", "newton_schulz", "muon"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(solver, bad):
    W = gaussian(2, 3, 5, 4).float()
    W[1, 0, 2, 2] = bad
    with pytest.raises(NonFiniteError) as caught:
        polar(W, solver)
    assert caught.value.indices == [3]
    assert isinstance(caught.value, ValueError)


# ---------------------------------------------------------------------------------------------------------- GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("condition", [1e2, 1e4, 9e5])
def test_exact_on_a_gpu(condition):
    for s in spectra(condition, 64).values():
        for shape in [(64, 64), (200, 64)]:
            W = with_spectrum(*shape, s).cuda()
            assert_guarantee(W.cpu(), polar_factor(W).cpu())


@pytest.mark.gpu
@needs_gpu
def test_newton_schulz_on_a_gpu_ignores_tf32():
    W = gaussian(5, 128, 128).float()
    torch.testing.assert_close(newton_schulz(W.cuda()).cpu(), newton_schulz(W), rtol=0, atol=5e-6)


@pytest.mark.gpu
@needs_gpu
def test_one_synchronisation_for_a_batch():
    W = gaussian(4, 64, 64).float().cuda()
    polar(W)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as seen:
            polar(W)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(seen) == 1
