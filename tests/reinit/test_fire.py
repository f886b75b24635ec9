"""fire_ on models, against float64 SVD."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fire_core import dfi, fire_
from fire_core.polar.options import SOLVERS
from tests.networks import GPT


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 9, 20),
        nn.ReLU(),
        nn.Linear(20, 4),
    )


def polar64(W: Tensor) -> Tensor:
    U, _, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    return U @ Vh


def matrices(weight: Tensor) -> Tensor:
    """(..., d_out, d_in), independently of the layout module."""
    return weight.permute(2, 3, 0, 1) if weight.ndim == 4 else weight[None]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.ndim > 1}


def test_exact_is_the_scaled_polar_factor_of_every_kernel_position():
    model = network()
    before = copy.deepcopy(weights(model))
    report = fire_(model, solver="exact")
    for name, weight in weights(model).items():
        W = matrices(before[name])
        scale = math.sqrt(weight.shape[0] / weight.shape[1]) / (weight[0, 0].numel() if weight.ndim == 4 else 1)
        torch.testing.assert_close(matrices(weight).double(), scale * polar64(W), rtol=0, atol=2e-6)
        row = next(row for row in report if row.name == name)
        assert row.scale == pytest.approx(scale)
        assert row.dfi_before == pytest.approx(float(dfi(W.double() / scale).sum()), rel=1e-4)
        assert row.sfe == pytest.approx(float((weight.double() - before[name].double()).square().sum()), rel=1e-4)
        assert row.dfi_after < 1e-9
        assert row.rank == min(weight.shape[:2])


def test_parameters_buffers_and_identity():
    model = network()
    ids = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    rest = {n: t.clone() for n, t in model.state_dict().items() if n not in weights(model)}
    report = fire_(model)
    assert {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()} == ids
    assert all(torch.equal(model.state_dict()[name], value) for name, value in rest.items())
    assert all(p.requires_grad for p in model.parameters())
    assert {row.name for row in report} == weights(model).keys()
    assert sorted(report.kept) == sorted(n for n, _ in model.named_parameters() if n not in weights(model))


def test_deterministic_bit_for_bit():
    first, second = network(), network()
    for solver in ("newton_schulz", "exact"):
        fire_(first, solver=solver)
        fire_(second, solver=solver)
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_batches_do_not_change_the_numbers(monkeypatch):
    whole, parts = GPT(), GPT()
    parts.load_state_dict(whole.state_dict())
    fire_(whole, solver="exact")
    monkeypatch.setattr("fire_core.reinit.project.BATCH_ELEMENTS", 200)
    fire_(parts, solver="exact")
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_names_the_parameter_and_changes_nothing(solver, bad):
    model = network()
    with torch.no_grad():
        model[4].weight[3, 5] = bad
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"NaN or Inf in 4\.weight: the model is unchanged"):
        fire_(model, solver=solver, optimizer=optimizer)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) or name == "4.weight"
    assert torch.equal(model[4].weight.isfinite(), before["4.weight"].isfinite())
    fire_(model, solver=solver, exclude="4.weight")


# ------------------------------------------------------------------------------------------- rank, zeros, odd shapes


def test_dead_rows_are_filled_from_the_initial_weights():
    """With a Gaussian instead the result is another matrix, the same where W had something to say."""
    start = nn.Linear(6, 6).weight.detach()
    W = start.clone()
    W[2:4] = 0
    W[:, 1] = 0  # rank 4
    filled = []
    for init in ({"weight": start}, None):
        model = nn.Linear(6, 6)
        with torch.no_grad():
            model.weight.copy_(W)
        (row,) = fire_(model, solver="exact", init=init)
        assert (row.rank, row.completed) == (4, 1)
        assert row.dfi_after < 1e-9
        filled.append(model.weight.detach())
    V = torch.linalg.svd(W.double())[2][:4].mT  # row space
    torch.testing.assert_close(filled[0].double() @ V, filled[1].double() @ V, atol=1e-5, rtol=0)
    assert (filled[0] - start).square().sum() < (filled[1] - start).square().sum()


# --------------------------------------------------------------------------------------------- scale, min_norm, blend


@pytest.mark.parametrize("solver", ["newton_schulz", "exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", ["match_init", "init_norm", "keep_norm"])
def test_scales_keep_the_norm_of_the_initial_or_the_present_weights(scale, dtype, solver):
    """Of each matrix; with match_init of the whole weight, whose matrices then have one scale."""
    model, init = network(), network()
    with torch.no_grad():
        for start in (model, init):
            start[0].weight[:, :, 0, 1] *= 7
        model[6].weight.mul_(1e-20)
        init[4].weight.mul_(3)
    model.to(dtype)
    wanted = copy.deepcopy(weights(model if scale == "keep_norm" else init))
    start = None if scale == "keep_norm" else init.state_dict()
    report = fire_(model, solver, iterations=10 if solver == "exact" else 60, scale=scale, init=start)
    rtol = 1e-5 if dtype == torch.float32 else 4e-3
    for row, (name, weight) in zip(report, weights(model).items(), strict=True):
        old, new = (torch.linalg.matrix_norm(matrices(w).double()) for w in (wanted[name], weight))
        root = old.square().mean().sqrt()
        torch.testing.assert_close(new, root.expand_as(new) if scale == "match_init" else old, rtol=rtol, atol=0)
        spectrum = torch.linalg.svdvals(matrices(weight).double())
        assert (spectrum.amax(-1) / spectrum.amin(-1)).max() < (1 + 1e-4 if dtype == torch.float32 else 1.05)
        assert row.scale == pytest.approx(float(root) / min(row.shape) ** 0.5, rel=1e-5)
        assert row.norm_after == pytest.approx(float(new.square().sum().sqrt()), rel=1e-5)


@pytest.mark.parametrize("scale", ["match_init", "init_norm"])
def test_scales_refuse_zero_and_missing_initial_weights(scale):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"1\.weight is zero in init"):
        fire_(model, scale=scale, init={**before, "1.weight": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match=r"init has no '0\.weight'"):
        fire_(model, scale=scale)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("factor", [1.0, 0.9, 2.0])
@pytest.mark.parametrize("layer", [nn.Linear(30, 50), nn.Linear(50, 30), nn.Conv2d(30, 40, 3)])
def test_scale_variance_factor_sets_the_output_variance(layer, factor):
    model = nn.Sequential(copy.deepcopy(layer))
    fire_(model, solver="exact", scale="variance_factor", variance_factor=factor)
    shape = (4000, 50 if model[0].weight.shape[1] == 50 else 30)
    x = torch.randn(
        shape if isinstance(layer, nn.Linear) else (60, 30, 10, 10), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        model[0].bias.zero_()
        ratio = model(x).square().mean() / x.square().mean()
    assert float(ratio) == pytest.approx(factor, rel=0.05)


def test_min_norm_leaves_small_matrices_alone():
    model = network()
    with torch.no_grad():
        model[4].weight.mul_(1e-4)
        model[0].weight[:, :, 0, 0] *= 1e-4
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    report = fire_(model, min_norm=1e-2, optimizer=optimizer)
    actions = {row.name: (row.action, row.skipped) for row in report}
    assert actions == {"0.weight": ("project", 1), "4.weight": ("skip", 1), "6.weight": ("project", 0)}
    assert torch.equal(model[4].weight, before["4.weight"])
    assert torch.equal(model[0].weight[:, :, 0, 0], before["0.weight"][:, :, 0, 0])
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert model[4].weight in optimizer.state
    assert model[6].weight not in optimizer.state
    assert all(p is not model[4].weight for p in report.parameters)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_blend_turns_between_the_spectra(t):
    model = network()
    before = copy.deepcopy(weights(model))
    scales = {row.name: row.scale for row in fire_(model, solver="exact", blend=t)}
    for name, weight in weights(model).items():
        W = matrices(before[name]).double()
        U, S, Vh = torch.linalg.svd(W, full_matrices=False)
        expected = (U * (S ** (1 - t) * scales[name] ** t)[..., None, :]) @ Vh
        torch.testing.assert_close(matrices(weight).double(), expected, rtol=0, atol=2e-6)
        if t == 0:
            assert torch.equal(weight, before[name])


# --------------------------------------------------------------------------------------------- ties, dtypes, compile


def test_ties_survive():
    model = GPT()
    fire_(model, solver="exact")
    assert model.lm_head.weight is model.transformer["wte"].weight
    W = model.lm_head.weight.detach()
    torch.testing.assert_close(W.mT @ W, torch.eye(12) * 40 / 12, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_computed_in_float32_or_better(dtype):
    model = network().to(dtype)
    before = copy.deepcopy(weights(model))
    report = fire_(model, solver="exact")
    for name, weight in weights(model).items():
        assert weight.dtype == dtype
        row = next(row for row in report if row.name == name)
        expected = row.scale * polar64(matrices(before[name]))
        exactly = matrices(weight).double() - expected
        ulp = torch.finfo(dtype).eps / 2 * expected.abs() + (torch.finfo(dtype).tiny if dtype != torch.float64 else 0)
        assert (exactly.abs() <= ulp * 1.01 + 1e-6).all()  # one rounding at the end
        assert row.dfi_after == pytest.approx(
            float(dfi(matrices(weight).double() / row.scale).sum()), rel=1e-3, abs=1e-9
        )


def test_a_compiled_model_goes_on_without_recompiling():
    torch._dynamo.reset()  # what other tests have compiled is not to be recompiled here
    model = network().eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(2, 3, 5, 5)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        compiled(x)
        report = fire_(compiled)
        assert {row.name for row in report} == weights(model).keys()
        torch.testing.assert_close(compiled(x), model(x))


def test_channels_last_weights():
    plain, strided = network(), network().to(memory_format=torch.channels_last)
    fire_(plain)
    fire_(strided)
    assert strided[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(plain[0].weight, strided[0].weight, rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("solver", ["newton_schulz", "exact"])
def test_gpu_agrees_with_cpu(solver):
    here, there = network(), network().cuda()
    fire_(here, solver=solver, iterations=10 if solver == "exact" else 30)
    fire_(there, solver=solver, iterations=10 if solver == "exact" else 30)
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=0, atol=5e-6)
    with torch.no_grad():
        there[4].weight[0, 0] = math.nan
    before = there[0].weight.clone()
    with pytest.raises(ValueError, match=r"NaN or Inf in 4\.weight"):
        fire_(there, solver=solver)
    assert torch.equal(there[0].weight, before)
