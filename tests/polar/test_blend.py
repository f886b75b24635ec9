"""Part of the way against a float64 SVD, over families of matrices."""

import math

import pytest
import torch
from torch import Tensor

from fire_core.polar import blend as blend_module
from fire_core.polar.blend import blend
from tests.polar.families import gaussian, spectra, with_spectrum

PARTS = (0.05, 0.25, 0.5, 0.75, 0.95)


def truth(W: Tensor, scale: float | Tensor, t: float) -> Tensor:
    """(sigma / scale)^(1-t) on the singular vectors of one matrix, in float64; what an SVD leaves of a zero is zero."""
    U, S, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    kept = max(W.shape) * torch.finfo(torch.float64).eps * S.max() < S
    return (U * torch.where(kept, (S / scale) ** (1 - t), 0)) @ Vh


def error(W: Tensor, scale: float, t: float) -> float:
    """The largest distance of one matrix from the truth, relative to the scale or the result's norm if that is more."""
    result, _ = blend(W[None], torch.full((1, 1, 1), scale, dtype=W.dtype), t)
    assert result.shape == (1, *W.shape)
    assert result.dtype == W.dtype
    expected = truth(W, scale, t)
    distance = torch.linalg.matrix_norm(result[0].double() - expected, 2)
    return float(distance / max(1.0, float(torch.linalg.matrix_norm(expected, 2))))


@pytest.mark.parametrize("shape", [(64, 64), (160, 128), (128, 160), (700, 40), (40, 700), (1, 7), (7, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("t", PARTS)
def test_gaussians(shape, dtype, t):
    bound = 1e-6 if dtype == torch.float32 else 1e-12
    assert error(gaussian(*shape).to(dtype), 0.3, t) < bound


@pytest.mark.parametrize(
    ("condition", "bound"), [(1e2, 1e-6), (1e4, 1e-6), (2e4, 1e-5), (5e4, 1e-5), (9e5, 1e-5), (1e7, 3e-4), (1e8, 3e-4)]
)
@pytest.mark.parametrize("shape", [(96, 96), (110, 96), (400, 48)])
@pytest.mark.parametrize("t", PARTS)
def test_ill_conditioned(condition, bound, shape, t):
    for seed, s in enumerate(spectra(condition, shape[1]).values()):
        W = with_spectrum(*shape, s, seed=10 * seed)
        assert error(W, 1.0, t) < bound
        assert error(W.T, 1.0, t) < bound


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_float64_is_nearly_exact(condition):
    """Directions far below the largest are where a Gram matrix alone, which squares them, would be wrong by 1e-2."""
    U, V = (torch.linalg.qr(gaussian(60, 60, seed=seed))[0] for seed in (0, 1))
    s = torch.logspace(0, -math.log10(condition), 60, dtype=torch.float64)
    for t in PARTS:
        result, _ = blend(((U * s) @ V.T)[None], torch.ones(1, 1, 1, dtype=torch.float64), t)
        assert torch.linalg.matrix_norm(result[0] - (U * s ** (1 - t)) @ V.T, 2) < 1e-15 * condition + 1e-10


@pytest.mark.parametrize("size", [1e-20, 1e-10, 1.0, 1e20])
@pytest.mark.parametrize("t", [0.25, 0.5])
def test_tiny_and_huge(size, t):
    """Squares of such entries under- and overflow in float32; the result's size is size^(1-t)."""
    W = with_spectrum(60, 40, spectra(1e3, 40)["geometric"]) * size
    result, _ = blend(W[None], torch.ones(1, 1, 1), t)
    expected = truth(W, 1.0, t)
    assert torch.linalg.matrix_norm(result[0] - expected, 2) < 1e-6 * size ** (1 - t)


def test_float64_beyond_the_range_of_its_squares():
    W = gaussian(30, 20) * 1e-200
    result, _ = blend(W[None], torch.ones(1, 1, 1, dtype=torch.float64), 0.5)
    expected = truth(W * 1e200, 1.0, 0.5) * 1e-100
    assert torch.linalg.matrix_norm(result[0] - expected) < 1e-12 * torch.linalg.matrix_norm(expected)


@pytest.mark.parametrize("shape", [(6, 40, 40), (6, 50, 30), (6, 30, 50)])
def test_each_of_a_stack_has_its_own_scale_rank_and_route(shape):
    """Well conditioned, ill conditioned, rank-deficient and zero matrices side by side, of unlike size."""
    n = min(shape[1:])
    W = gaussian(*shape).float()
    ill = with_spectrum(max(shape[1:]), n, spectra(1e6, n)["half tiny"])
    W[1] = ill if shape[1] >= shape[2] else ill.T
    W[2, :, 5:9] = 0
    W[2, 3:8] = 0
    W[3] = 0
    W[4] *= 1e12
    scale = torch.tensor([1.0, 0.2, 5.0, 1.0, 1e6, 0.01])[:, None, None]
    rank = [int(torch.linalg.matrix_rank(w.double(), rtol=2.4e-7)) for w in W]
    for t in PARTS:
        result, ranks = blend(W, scale, t)
        assert ranks.tolist() == rank
        assert not result[3].any()
        for b in (0, 1, 2, 4, 5):
            expected = truth(W[b], scale[b], t)
            distance = torch.linalg.matrix_norm(result[b] - expected, 2)
            assert distance < 1e-5 * max(1.0, float(torch.linalg.matrix_norm(expected, 2)))


@pytest.mark.parametrize("split", [1, 2**10])
def test_pieces_do_not_change_the_numbers(split, monkeypatch):
    """Batches are cut for the caches, tall matrices into blocks of rows for the memory."""
    W = torch.cat([gaussian(3, 90, 20).float(), gaussian(1, 90, 20, seed=1).float() * 1e-3])
    whole, _ = blend(W, torch.ones(4, 1, 1), 0.5)
    monkeypatch.setattr(blend_module, "CPU_CHUNK", split)
    torch.testing.assert_close(blend(W, torch.ones(4, 1, 1), 0.5)[0], whole, rtol=1e-6, atol=1e-7)


def lost_directions(kind: str, m: int, n: int) -> Tensor:
    W = gaussian(m, n).float()
    if kind == "dead rows and columns":
        W[3:20] = 0
        W[:, 7:20] = 0
    elif kind == "copied columns":
        W[:, n // 2 :] = W[:, : n - n // 2]
    elif kind == "one entry":
        W = torch.zeros(m, n)
        W[2, 4] = 3.0
    elif kind == "zero":
        W = torch.zeros(m, n)
    return W


@pytest.mark.parametrize("kind", ["dead rows and columns", "copied columns", "one entry", "zero"])
@pytest.mark.parametrize("shape", [(48, 48), (80, 48), (48, 80)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("t", [0.25, 0.5, 0.9, 0.999])
def test_what_is_lost_stays_lost(kind, shape, dtype, t):
    """Also near t = 1, where rounding to that power would be as large as what the weight has."""
    W = lost_directions(kind, *shape).to(dtype)
    result, ranks = blend(W[None], torch.ones(1, 1, 1, dtype=dtype), t)
    rank = int(torch.linalg.matrix_rank(W.double()))
    assert ranks.tolist() == [rank]
    spectrum = torch.linalg.svdvals(result[0].double())
    assert (spectrum[rank:] < 1e-6).all()
    torch.testing.assert_close(result[0].double(), truth(W, 1.0, t), rtol=0, atol=3e-6)


@pytest.mark.parametrize("t", [0.25, 0.5, 0.75])
def test_the_rounding_of_a_product_of_factors_counts_as_lost_and_stays_as_small_as_the_power_makes_it(t):
    W = (gaussian(60, 20) @ gaussian(20, 50, seed=1)).float() / 10
    result, ranks = blend(W[None], torch.ones(1, 1, 1), t)
    assert ranks.tolist() == [20]
    torch.testing.assert_close(result[0].double(), truth(W, 1.0, t), rtol=0, atol=3e-6)


@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize("factor", [1.0, 1e-6])
def test_repeated_singular_values(n, factor):
    """Isometries, and spectra of two values: singular vectors are not unique, the result is."""
    s = torch.ones(n, dtype=torch.float64)
    s[n // 2 :] = factor
    for m in (n, 3 * n):
        for t in PARTS:
            assert error(with_spectrum(m, n, s), 1.0, t) < 1e-5


def test_it_is_deterministic_and_leaves_its_input_alone():
    W = gaussian(3, 50, 50).float()
    W[1, :, :7] = 0
    before = W.clone()
    first, second = (blend(W, torch.ones(3, 1, 1), 0.5)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(W, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("condition", [1e2, 1e4, 9e5])
def test_on_a_gpu(condition):
    for s in spectra(condition, 64).values():
        for shape in [(64, 64), (200, 64)]:
            W = with_spectrum(*shape, s)
            result = blend(W[None].cuda(), torch.ones(1, 1, 1, device="cuda"), 0.5)[0].cpu()[0]
            assert torch.linalg.matrix_norm(result.double() - truth(W, 1.0, 0.5), 2) < 1e-5
