"""Newton-Schulz against the reference code, case by case as the golden file lists them."""

import re

import pytest
import torch

from fire_core.polar import newton_schulz, polar_factor
from tests.parity import golden

OUT = golden.tensors("ns", "out.")
CASES = sorted(key for key in OUT if torch.isfinite(OUT[key]).all())


def parse(key: str) -> tuple[str, int]:
    name, steps = re.fullmatch(r"(.+)\.it(\d+)", key).groups()
    return name, int(steps)


def tolerance(name: str, steps: int) -> float:
    # Null directions hold rounding noise that grows 1.5-fold a step (golden README).
    return 5e-5 if steps > 10 and name in ("rankdef", "illcond") else 5e-6


@pytest.mark.parametrize("key", CASES)
def test_matches_the_reference(key):
    name, steps = parse(key)
    W = golden.tensors("ns", "in.")[name]
    X = newton_schulz(W, iterations=steps)
    assert X.dtype == W.dtype
    torch.testing.assert_close(X, OUT[key], rtol=0, atol=tolerance(name, steps))
    exact = golden.tensors("ns", "out64.").get(key)
    if exact is not None:
        torch.testing.assert_close(newton_schulz(W.double(), steps), exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize("key", CASES)
def test_singular_values_match_the_reference(key):
    stored = golden.tensors("ns", "sv.").get(key)
    if stored is None:
        pytest.skip("no singular values stored for this case")
    name, steps = parse(key)
    X = polar_factor(golden.tensors("ns", "in.")[name], "newton_schulz", iterations=steps)
    torch.testing.assert_close(torch.linalg.svdvals(X.double()), stored, rtol=0, atol=20 * tolerance(name, steps))


def test_zero_matrix_stays_zero_where_the_reference_gives_nan():
    """Unlike the reference on purpose (golden NOTES, A19): a dead kernel position must not spread NaN."""
    broken = [key for key in OUT if not torch.isfinite(OUT[key]).all()]
    assert broken
    for key in broken:
        name, steps = parse(key)
        W = golden.tensors("ns", "in.")[name]
        assert torch.isnan(OUT[key]).all()
        assert torch.equal(newton_schulz(W, steps), torch.zeros_like(W))
