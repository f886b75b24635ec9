"""Newton-Schulz steps and the minimax schedule: singular values follow their scalar recursion."""

import math

import pytest
import torch
from torch import Tensor

from fire_core.polar.factor import newton_schulz
from fire_core.polar.options import NORM_INITS
from fire_core.polar.steps import minimax_steps
from tests.polar.families import dfi64, gaussian, polar, spectra, with_spectrum

# ------------------------------------------------------------------------------------------------ newton_schulz


def scalar_recursion(s: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        s = 1.5 * s - 0.5 * s**3
    return s


@pytest.mark.parametrize("shape", [(30, 30), (45, 30), (200, 30), (30, 200), (1, 7)])
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


def test_tol_stops_early():
    W = gaussian(3, 30, 12).float()
    X, report = polar(W, "newton_schulz", iterations=50, tol=1e-3)
    assert 0 < report.iterations < 50
    assert dfi64(X).max() <= 1.1e-3
    assert dfi64(newton_schulz(W, report.iterations - 1)).max() > 1e-3
    square, report = polar(gaussian(12, 12).float(), "newton_schulz", iterations=50, tol=1e-3)
    assert dfi64(square) <= 1.1e-3
    assert report.iterations < 50


SETTINGS = (
    pytest.param("torch.set_float32_matmul_precision('medium')", marks=pytest.mark.slow),
    "torch.backends.fp32_precision = 'bf16'; torch.backends.cuda.matmul.fp32_precision = 'tf32'",
)


@pytest.mark.parametrize("setting", SETTINGS)
def test_lower_matmul_precision_and_autocast_do_not_reach_it(setting, tmp_path, zygote):
    """In a process of its own: torch's old and new settings do not mix, and cannot be undone together."""
    program = f"""
import torch, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Please use the new API settings")  # torch 2.9 says so of the first setting
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
    answer = zygote.code(tmp_path, program)
    assert answer.code == 0, answer.err


@pytest.mark.filterwarnings("default")  # the compiler's own deprecations
@pytest.mark.parametrize(("shape", "norm_inits"), [((3, 40, 40), ("frobenius", "power")), ((2, 9, 30), ("frobenius",))])
def test_compiles_without_a_graph_break(shape, norm_inits):
    torch.compiler.reset()
    W = gaussian(*shape).float()
    compiled = torch.compile(newton_schulz, fullgraph=True, backend="aot_eager")
    for norm_init in norm_inits:
        torch.testing.assert_close(compiled(W, 5, norm_init), newton_schulz(W, 5, norm_init), rtol=0, atol=2e-6)


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
