"""Metrics against definitions in numpy and float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import metrics as M


def with_spectrum(values: list[float], m: int, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    U, _ = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64))
    V, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    k = len(values)
    return U[:, :k] * torch.tensor(values, dtype=torch.float64) @ V[:, :k].mT


SPECTRUM = [3.0, 2.0, 0.5, 0.1]


@pytest.mark.parametrize("shape", [(4, 4), (7, 4), (4, 7)])
def test_dfi_and_ranks_follow_the_singular_values(shape):
    W = with_spectrum(SPECTRUM, *shape)
    s = np.array(SPECTRUM)
    p = s / s.sum()
    assert float(M.dfi(W)) == pytest.approx(((s**2 - 1) ** 2).sum())
    assert float(M.stable_rank(W)) == pytest.approx((s**2).sum() / 9)
    assert float(M.effective_rank(W)) == pytest.approx(math.exp(-(p * np.log(p)).sum()))
    assert int(M.srank(W, delta=0.01)) == 4  # the first three hold 5.5 of 5.6, short of 99 %
    assert int(M.srank(W, delta=0.02)) == 3


def test_metrics_of_a_batch_are_those_of_its_matrices():
    W = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for metric in (M.dfi, M.stable_rank, M.effective_rank, M.srank):
        whole = metric(W)
        assert whole.shape == (3, 2)
        assert whole[2, 1] == pytest.approx(metric(W[2, 1]).item())


def test_isometries_and_zero():
    eye = torch.eye(5)[:, :3]
    assert float(M.dfi(eye)) == 0
    assert float(M.dfi(eye.mT)) == 0
    assert float(M.stable_rank(eye)) == pytest.approx(3)
    assert float(M.effective_rank(eye)) == pytest.approx(3)
    zero = torch.zeros(5, 3)
    assert [float(f(zero)) for f in (M.dfi, M.stable_rank, M.effective_rank, M.srank)] == [3, 0, 0, 0]


def test_dfi_within_a_training_step_s_autocast():
    Q = torch.linalg.qr(torch.randn(64, 64))[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert float(M.dfi(Q)) < 1e-8


def test_dormant_ratio_is_redos():
    # |h| means 1, 0.5, 0.02, 0 -> scores by the mean 0.38: 2.63, 1.32, 0.0526, 0
    layer = torch.tensor([[1.0, 0.5, 0.04, 0.0], [-1.0, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(M.dormant_scores(layer), torch.tensor([1, 0.5, 0.02, 0]) / 0.38)
    assert M.dormant_ratio([layer]) == 0.25
    assert M.dormant_ratio([layer], 0.1) == 0.5
    alive = torch.ones(2, 12)
    assert M.dormant_ratio([layer, alive], 0.1) == 2 / 16  # over all units, not the mean of two ratios
    assert M.dormant_ratio([torch.zeros(3, 4)]) == 1
    images = torch.rand(2, 3, 4, 4)
    assert M.dormant_scores(images.movedim(1, -1)).shape == (3,)


def test_hessian_norm_agrees_with_the_full_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    params = dict(model.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in params.values()])

    def loss_of(vector: Tensor) -> Tensor:
        parts = vector.split([p.numel() for p in params.values()])
        state = {n: part.view_as(p) for (n, p), part in zip(params.items(), parts, strict=True)}
        return F.mse_loss(torch.func.functional_call(model, state, x), y)

    exact = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_of, flat)).abs().max()
    estimate = M.hessian_spectral_norm(lambda: F.mse_loss(model(x), y), list(params.values()), 500, tol=1e-9)
    assert estimate == pytest.approx(float(exact), rel=1e-4)
    assert all(p.grad is None for p in params.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: M.sfe(torch.ones(3, 3), torch.ones(3)), "shapes .* differ"),
        (lambda: M.srank(torch.eye(3), 1.0), "delta=1.0: must be at least 0 and below 1"),
        (lambda: M.dormant_ratio([]), "no activations"),
        (lambda: M.hessian_spectral_norm(lambda: torch.ones(()), [torch.ones(3)]), "no parameter requires"),
        (lambda: M.stable_rank(torch.ones(3, 3, dtype=torch.complex64)), "complex64 is not supported"),
    ],
)
def test_what_has_no_answer_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_srank_is_at_most_the_number_of_singular_values():
    torch.manual_seed(0)
    for _ in range(50):
        assert int(M.srank(torch.randn(30, 20), delta=0)) <= 20


def test_hessian_norm_of_a_loss_that_is_linear_in_some_parameters():
    w, b = (torch.randn(3, requires_grad=True) for _ in range(2))
    assert M.hessian_spectral_norm(lambda: w.square().sum() + b.sum(), [w, b]) == pytest.approx(2)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    assert M.hessian_spectral_norm(lambda: net(torch.ones(2, 3)).mean(), list(net.parameters())) > 0


@pytest.mark.parametrize(
    "call",
    [M.dfi, lambda b: M.sfe(b, b), lambda b: M.alignment(b, torch.eye(3)), M.stable_rank, M.effective_rank, M.srank],
)
def test_a_bias_is_refused_by_name(call):
    with pytest.raises(ValueError, match=r"^\w+ takes matrices, .* and got a tensor of shape \(3,\)$"):
        call(torch.ones(3))


@pytest.mark.parametrize("function", [M.dfi, M.stable_rank, M.effective_rank, M.srank])
def test_what_is_no_tensor_is_refused_by_name(function) -> None:
    with pytest.raises(TypeError, match=rf"^{function.__name__} takes a weight, .* not a list$"):
        function([[1.0, 2.0]])
    hint = r": print\(fire_\(copy.deepcopy\(model\)\)\)" if function is M.dfi else "$"
    with pytest.raises(TypeError, match=f"not a Linear{hint}"):
        function(nn.Linear(2, 2))


def test_activations_of_one_layer_are_not_taken_for_several_layers() -> None:
    activations = torch.rand(4, 5, 8)
    activations[..., 0] = 0
    assert M.dormant_ratio([activations]) == 1 / 8
    with pytest.raises(TypeError, match="dormant_ratio takes the activations of each layer in a list"):
        M.dormant_ratio(activations)
    with pytest.raises(ValueError, match=r"activations are \(samples, ..., units\), and got a tensor of shape \(8,\)"):
        M.dormant(torch.rand(8))
    with pytest.raises(TypeError, match=r"a tensor, .* not a list"):
        M.dormant_scores([[0.0, 1.0]])


def test_a_dormant_ratio_of_what_is_not_finite_is_not_known() -> None:
    """A layer of NaN is not in perfect health."""
    whole = torch.rand(8, 4)
    for broken in (torch.full((8, 4), torch.nan), torch.tensor([[1.0, torch.inf, 1.0, 1.0]]), torch.zeros(0, 4)):
        assert math.isnan(M.dormant_ratio([whole, broken], 0.1))
    assert M.dormant_ratio([whole], 0.0) == 0.0
