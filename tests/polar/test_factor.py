"""Polar factors against a float64 SVD, over families of matrices."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from fire_core.polar import exact
from fire_core.polar.factor import (
    NonFiniteError,
    newton_schulz,
    polar,
    polar_factor,
    polar_many,
)
from fire_core.polar.options import NORM_INITS, PolarOptions
from fire_core.polar.steps import minimax_steps, prepare, upper_bound

EXACT_ROUTES = ("cpu", "matmul only")


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


# ------------------------------------------------------------------------------------------------------ exact


@pytest.mark.parametrize(
    "shape",
    [(64, 64), (3, 96, 96), (5, 24, 24), (160, 128), (128, 160), (300, 40), (40, 300), (2, 3, 17, 30), (1, 2, 2)],
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
    assert not report.completed.any()


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
    """torch 2.15 inverts batches wrongly on two threads from n = 160; one matrix at a time is right."""
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


def test_denormal_entries():
    W = gaussian(50, 20).float() * 1e-40
    assert 0 < W.abs().max() < 1.2e-38
    assert_guarantee(W, polar_factor(W))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("solver", ["exact", "newton_schulz"])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype, solver):
    W = gaussian(3, 40, 30).to(dtype)
    X = polar_factor(W, solver)
    assert X.dtype == dtype
    assert torch.equal(X, polar_factor(W.float(), solver).to(dtype))


@pytest.mark.parametrize("solver", ["exact", "newton_schulz", "muon"])
@pytest.mark.parametrize("shape", [(0, 4, 4), (3, 0, 4), (3, 4, 0), (0, 0)])
def test_empty(solver, shape):
    W = torch.empty(shape)
    X, report = polar(W, solver)
    assert X.shape == shape
    assert report.solver == solver


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (4, 1, 1)])
def test_vectors_are_normalised(shape):
    W = gaussian(*shape).float()
    expected = W / torch.linalg.matrix_norm(W, keepdim=True)
    torch.testing.assert_close(polar_factor(W), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(newton_schulz(W, 3), expected, rtol=0, atol=1e-6)


def test_exact_is_deterministic_and_leaves_its_input_alone():
    W = gaussian(4, 50, 50).float()
    W[2, :, 0] = 0
    before = W.clone()
    first, second = polar_factor(W), polar_factor(W)
    assert torch.equal(first, second)
    assert torch.equal(W, before)
    assert polar_factor(torch.eye(3)).data_ptr() != torch.eye(3).data_ptr()


def test_views_and_kernel_positions():
    conv = gaussian(12, 8, 3, 3).float()
    X = polar_factor(conv.permute(2, 3, 0, 1))  # (3, 3, 12, 8)
    for i in range(3):
        for j in range(3):
            assert_guarantee(conv[:, :, i, j], X[i, j])


def test_properties_of_the_polar_factor():
    """Isometric, equivariant under rotations, W = X H with H symmetric positive, and nearest of all isometries."""
    W = gaussian(60, 25).float()
    X = polar_factor(W).double()
    Q = torch.linalg.qr(gaussian(60, 60, seed=5))[0]
    torch.testing.assert_close(polar_factor((Q @ W.double()).float()).double(), Q @ X, rtol=0, atol=2e-6)
    H = X.T @ W.double()
    torch.testing.assert_close(H, H.T, rtol=0, atol=1e-5)
    assert torch.linalg.eigvalsh(H).min() > 0
    distance = torch.linalg.matrix_norm(W.double() - X)
    for seed in range(20):
        other = torch.linalg.qr(X + 0.1 * gaussian(60, 25, seed=seed))[0] * torch.sign(X[0, 0])
        assert torch.linalg.matrix_norm(W.double() - other) > distance


# ------------------------------------------------------------------------------------------ rank and bad input


@pytest.mark.parametrize("shape", [(48, 48), (80, 48), (48, 80)])
@pytest.mark.parametrize("with_init", [True, False])
def test_rank_deficient_matrices_are_completed(shape, with_init):
    rank = 20
    W = (gaussian(shape[0], rank) @ gaussian(rank, shape[1], seed=1)).float()
    init = gaussian(*shape, seed=2).float() if with_init else None
    X, report = polar(W, init=init)
    assert int(report.rank) == rank
    assert bool(report.completed)
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
    assert report.completed.tolist() == [True, True, False]
    assert dfi64(X).max() / 16 <= 1e-11
    torch.testing.assert_close(X[0].double(), truth(init[0]), rtol=0, atol=1e-5)
    assert_guarantee(W[2], X[2])
    # An init that is dead in the same rows says nothing there: a Gaussian does.
    init[1, 3:7] = 0
    assert dfi64(polar_factor(W, init=init)).max() / 16 <= 1e-11
    assert torch.equal(newton_schulz(W)[0], torch.zeros(16, 24))


def test_rank_300_of_512():
    W = (gaussian(512, 300) @ gaussian(300, 512, seed=1)).float()
    X, report = polar(W)
    assert int(report.rank) == 300
    assert dfi64(X) / 512 <= 1e-11


@pytest.mark.parametrize("solver", ["exact", "newton_schulz", "muon"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(solver, bad):
    W = gaussian(2, 3, 5, 4).float()
    W[1, 0, 2, 2] = bad
    with pytest.raises(NonFiniteError) as caught:
        polar_many([gaussian(2, 3, 3).float(), W], PolarOptions(solver))
    assert (caught.value.group, caught.value.indices) == (1, [3])
    assert isinstance(caught.value, ValueError)


def test_wrong_names_are_answered_with_the_right_ones():
    W = torch.eye(2)
    with pytest.raises(ValueError, match="newton_schulz, exact, muon"):
        polar(W, "svd")
    with pytest.raises(ValueError, match="frobenius, spectral, power, schatten4"):
        newton_schulz(W, norm_init="max")
    with pytest.raises(ValueError, match="iterations=-1"):
        newton_schulz(W, -1)


def test_many_equals_one_by_one():
    Ws = [gaussian(2, 9, 9).float(), gaussian(4, 20, 5).float(), torch.empty(0, 3, 3), gaussian(1, 5, 20).float()]
    for solver in ("exact", "newton_schulz"):
        for W, (X, report) in zip(Ws, polar_many(Ws, PolarOptions(solver)), strict=True):
            assert torch.equal(X, polar_factor(W, solver))
            assert report.solver == solver


# ------------------------------------------------------------------------------------------------ newton_schulz


def scalar_recursion(s: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        s = 1.5 * s - 0.5 * s**3
    return s


@pytest.mark.parametrize("shape", [(30, 30), (45, 30), (200, 30), (30, 200)])
@pytest.mark.parametrize("norm_init", NORM_INITS)
def test_singular_values_follow_the_cubic(shape, norm_init):
    W = gaussian(*shape)
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    start = {
        "frobenius": torch.linalg.matrix_norm(W),
        "spectral": s[0],
        "schatten4": (s**4).sum() ** 0.25,
        "power": (s**16).sum() ** (1 / 16),
    }[norm_init]
    for steps in (0, 1, 6, 12):
        expected = (U * scalar_recursion(s / start, steps)) @ Vh
        torch.testing.assert_close(newton_schulz(W, steps, norm_init), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(newton_schulz(W.float(), steps, norm_init).double(), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("shape", [(64, 64), (512, 128), (256, 30)])
@pytest.mark.parametrize("family", ["condition 1e5", "rank 10", "one large"])
@pytest.mark.parametrize("steps", [10, 15])
def test_float32_stays_near_float64_on_hard_matrices(shape, family, steps):
    m, n = shape
    s = spectra(1e5, n)["one large" if family == "one large" else "geometric"]
    if family == "rank 10":
        s = torch.where(torch.arange(n) < 10, s, 0.0)
    W = with_spectrum(m, n, s)
    exact = newton_schulz(W.double(), steps)
    # Rounding noise in null directions grows 1.5-fold a step, as it does in the plain loop.
    atol = 5e-6 if steps == 10 else 5e-5
    torch.testing.assert_close(newton_schulz(W, steps).double(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize("norm_init", ["power", "schatten4"])
def test_bounds_hold_and_are_tight(norm_init):
    squarings = {"schatten4": 0, "power": 2}[norm_init]
    for W in (
        gaussian(40, 40),
        gaussian(90, 20),
        torch.eye(64, dtype=torch.float64),
        with_spectrum(30, 30, spectra(1e4, 30)["one large"]).double(),
    ):
        top = torch.linalg.matrix_norm(W, ord=2)
        bound = upper_bound(W[None], squarings).squeeze()
        order = 4 * 2**squarings
        assert top * (1 - 1e-12) <= bound <= top * W.shape[-1] ** (1 / order) * (1 + 1e-12)


def test_no_start_makes_it_diverge():
    """The claim that ||W||_F makes the iteration diverge: from (0, 1] it cannot, it is late."""
    W = gaussian(64, 64).float()
    for norm_init in NORM_INITS:
        errors = [float(dfi64(newton_schulz(W, k, norm_init))) for k in range(0, 60, 3)]
        assert all(after <= before * (1 + 1e-6) + 1e-9 for before, after in itertools.pairwise(errors))
        assert errors[-1] < 1e-6


def test_tol_stops_early():
    W = gaussian(3, 30, 12).float()
    X, report = polar(W, "newton_schulz", iterations=50, tol=1e-3)
    assert 0 < report.iterations < 50
    assert dfi64(X).max() <= 1.1e-3
    assert dfi64(newton_schulz(W, report.iterations - 1)).max() > 1e-3
    square, report = polar(gaussian(12, 12).float(), "newton_schulz", iterations=50, tol=1e-3)
    assert dfi64(square) <= 1.1e-3
    assert report.iterations < 50


def test_chunks_do_not_change_the_result(monkeypatch):
    W = gaussian(7, 20, 20).float()
    whole = newton_schulz(W)
    monkeypatch.setattr("fire_core.polar.factor.CHUNK", 800)
    torch.testing.assert_close(newton_schulz(W), whole, rtol=0, atol=1e-6)


SETTINGS = (
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.fp32_precision = 'bf16'; torch.backends.cuda.matmul.fp32_precision = 'tf32'",
)


@pytest.mark.parametrize("setting", SETTINGS)
def test_lower_matmul_precision_and_autocast_do_not_reach_it(setting):
    """In a process of its own: torch's old and new settings do not mix, and cannot be undone together."""
    program = f"""
import torch
from fire_core.polar.factor import newton_schulz, polar_factor
W = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
before = newton_schulz(W), polar_factor(W)
{setting}
state = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
with torch.autocast("cpu", dtype=torch.bfloat16):
    assert (W @ W).dtype == torch.bfloat16
    after = newton_schulz(W), polar_factor(W)
assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
assert state == (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("default")  # the compiler's own deprecations
@pytest.mark.parametrize("shape", [(3, 40, 40), (2, 9, 30)])
def test_compiles_without_a_graph_break(shape):
    torch.compiler.reset()
    W = gaussian(*shape).float()
    compiled = torch.compile(newton_schulz, fullgraph=True, backend="aot_eager")
    for norm_init in NORM_INITS:
        torch.testing.assert_close(compiled(W, 5, norm_init), newton_schulz(W, 5, norm_init), rtol=0, atol=2e-6)


def test_muon_keeps_wandering():
    s = torch.linalg.svdvals(polar_factor(gaussian(64, 64).float(), "muon", iterations=30).double())
    assert s.max() > 1.1
    assert s.min() < 0.8
    assert s.max() < 1.3


# ------------------------------------------------------------------------------------------------ the schedule


@pytest.mark.parametrize("low", [1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.999])
def test_minimax_schedule(low):
    x = torch.cat([torch.linspace(low, 1, 5001), torch.logspace(math.log10(low), 0, 5001)]).double().clamp(low, 1)
    for a, b, c in minimax_steps(low):
        x = a * x + b * x**3 + c * x**5
    assert x.min() >= 1 - 2.1e-5
    assert x.max() <= 1 + 1e-12
    # Newton-Schulz would need log(1 / low) / log(1.5) steps and more.
    assert len(minimax_steps(low)) <= math.log(1 / low) / math.log(4) + 3


def test_each_step_is_optimal():
    """The error equioscillates: four alternating extrema, which no odd quintic can beat (de la Vallee Poussin)."""
    low = 0.1
    a, b, c = minimax_steps(low)[0]
    x = torch.linspace(low, 1, 100001, dtype=torch.float64)
    p = a * x + b * x**3 + c * x**5
    middle = (p.max() + p.min()) / 2
    error = (p - middle) / (p.max() - middle)
    alternations = [
        sign for sign, size in zip(error.sign().tolist(), error.abs().tolist(), strict=True) if size > 1 - 1e-6
    ]
    assert sum(u != v for u, v in itertools.pairwise(alternations)) == 3


# ---------------------------------------------------------------------------------------------------------- GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@needs_gpu
@pytest.mark.parametrize("condition", [1e2, 1e4, 9e5])
def test_exact_on_a_gpu(condition):
    for s in spectra(condition, 64).values():
        for shape in [(64, 64), (200, 64)]:
            W = with_spectrum(*shape, s).cuda()
            assert_guarantee(W.cpu(), polar_factor(W).cpu())


@needs_gpu
def test_newton_schulz_on_a_gpu_ignores_tf32():
    W = gaussian(5, 128, 128).float()
    torch.testing.assert_close(newton_schulz(W.cuda()).cpu(), newton_schulz(W), rtol=0, atol=5e-6)


@needs_gpu
def test_one_synchronisation_for_a_model():
    Ws = [gaussian(4, 64, 64).float().cuda(), gaussian(2, 128, 32).float().cuda()]
    polar_many(Ws, PolarOptions())
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as seen:
            polar_many(Ws, PolarOptions())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(seen) == 1


def test_matrices_of_one_batch_join_the_schedule_where_they_need_it():
    """None is left to the repair by SVD, which would hide a wrong schedule behind its time."""
    generator = torch.Generator().manual_seed(0)
    W = torch.stack([with_condition(48, c, generator) for c in (1.0, 3.0, 30.0, 1e3, 1e5, 2e6, 10.0)])
    out = torch.empty_like(W)
    assert exact.launch(W, out).all()
    assert (torch.linalg.svdvals(out.double()) - 1).abs().max() <= 2e-6


def with_condition(n: int, condition: float, generator: torch.Generator) -> torch.Tensor:
    U, V = (torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0] for _ in range(2))
    return (U * torch.logspace(0, -math.log10(condition), n, dtype=torch.float64) @ V).float()
