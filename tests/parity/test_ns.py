"""Newton-Schulz against the reference code, case by case as the golden file lists them."""

import re

import pytest
import torch

from fire_core.polar.factor import newton_schulz
from tests.parity import golden

OUT = golden.tensors("ns", "out.")
CASES = sorted(key for key in OUT if torch.isfinite(OUT[key]).all())
BROKEN = sorted(OUT.keys() - set(CASES))


def parse(key: str) -> tuple[str, int]:
    name, steps = re.fullmatch(r"(.+)\.it(\d+)", key).groups()
    return name, int(steps)


def tolerance(W: torch.Tensor, steps: int) -> float:
    """Null directions hold rounding noise that grows 1.5-fold a step; all others next to none."""
    values = torch.linalg.svdvals(W.double())
    singular = values[-1] < 1e-3 * values[0]
    return 5e-6 * 1.5 ** max(0, steps - 10) if singular else 5e-6


@pytest.mark.parametrize("key", CASES)
def test_matches_the_reference(key):
    name, steps = parse(key)
    W = golden.tensors("ns", "in.")[name]
    X = newton_schulz(W, iterations=steps)
    assert X.dtype == W.dtype
    torch.testing.assert_close(X, OUT[key], rtol=0, atol=tolerance(W, steps))
    exact = golden.tensors("ns", "out64.").get(key)
    if exact is not None:
        torch.testing.assert_close(newton_schulz(W.double(), steps), exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize("key", BROKEN)
def test_zero_matrix_stays_zero_where_the_reference_gives_nan(key):
    """Unlike the reference on purpose (docs/paper.md, A19): a dead kernel position must not spread NaN."""
    name, steps = parse(key)
    W = golden.tensors("ns", "in.")[name]
    assert not W.any()
    assert torch.isnan(OUT[key]).all()
    assert torch.equal(newton_schulz(W, steps), W)
