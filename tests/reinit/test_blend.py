"""fire_(model, blend=t), t of the way to the isometry, on models: against float64 SVDs, and what its report says."""

import copy
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from fire_core import FireWarning, fire_
from fire_core.methods import Context, Fire, Net
from fire_core.reinit.project import Projection
from tests.networks import GPT


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(72, 20), nn.Linear(20, 30), nn.Linear(30, 30), nn.Linear(30, 4)
    )


def matrices(weight: Tensor) -> Tensor:
    """(..., d_out, d_in) in float64."""
    weight = weight.detach().double()
    return weight.permute(2, 3, 0, 1) if weight.ndim == 4 else weight


def truth(W: Tensor, scale: float, t: float) -> Tensor:
    """sigma^(1-t) scale^t on the singular vectors of each matrix, in float64; what an SVD leaves of a zero is zero."""
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    is_zero = max(W.shape[-2:]) * torch.finfo(torch.float64).eps * S[..., :1] >= S
    return (U * torch.where(is_zero, 0, S ** (1 - t) * scale**t)[..., None, :]) @ Vh


def assert_blended(model: nn.Module, before: dict[str, Tensor], report, t: float, atol: float = 1e-6) -> None:
    for row in report:
        W = matrices(before[row.name])
        torch.testing.assert_close(
            matrices(model.get_parameter(row.name)), truth(W, row.scale, t), rtol=0, atol=atol * max(1, row.scale)
        )


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", ["modular", "orthogonal", "variance_factor", "match_init"])
def test_every_weight_goes_part_of_the_way(scale, t):
    model, init = network(), network().state_dict()
    before = copy.deepcopy(model.state_dict())
    report = fire_(model, blend=t, scale=scale, init=init)
    assert len(report) == 5
    assert_blended(model, before, report, t)
    assert {row.solver for row in report} == {"blend"}


def test_row_blocks_of_a_fused_weight_go_by_themselves():
    model = GPT(n_layer=1)
    before = copy.deepcopy(model.state_dict())
    report = fire_(model, layout="qk", blend=0.5)
    name = "transformer.h.0.attn.c_attn.weight"
    d = before[name].shape[1]
    new = model.get_parameter(name).detach().double()
    assert [row.name for row in report] == [f"{name}[q]", f"{name}[k]"]
    for i, row in enumerate(report):
        block = slice(i * d, (i + 1) * d)
        torch.testing.assert_close(new[block], truth(before[name][block].double(), row.scale, 0.5), rtol=0, atol=1e-6)
    assert torch.equal(new[2 * d :], before[name][2 * d :].double())


@pytest.mark.parametrize("scale", ["keep_norm", "init_norm"])
def test_each_matrix_of_a_convolution_has_its_own_scale(scale):
    model, init = network(), network().state_dict()
    with torch.no_grad():
        model[0].weight[:, :, 1, 2] *= 50
        init["0.weight"][:, :, 2, 2] *= 7
    before = matrices(model[0].weight)
    fire_(model, blend=0.5, scale=scale, init=init)
    source = before if scale == "keep_norm" else matrices(init["0.weight"])
    for i in range(3):
        for j in range(3):
            target = float(torch.linalg.matrix_norm(source[i, j])) / math.sqrt(3)
            expected = truth(before[i, j], target, 0.5)
            torch.testing.assert_close(matrices(model[0].weight)[i, j], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_half_precision_is_rounded_once(dtype):
    model = network().to(dtype)
    before = copy.deepcopy(model.state_dict())
    report = fire_(model, blend=0.5)
    for row in report:
        expected = truth(matrices(before[row.name]), row.scale, 0.5)
        new = model.get_parameter(row.name)
        assert new.dtype == dtype
        rounding = torch.finfo(dtype).eps / 2 * expected.abs() + (0 if dtype == torch.float64 else 1e-6)
        assert ((matrices(new) - expected).abs() <= rounding + 1e-10).all()


def test_what_it_reports_agrees_with_float64():
    model = network()
    before = copy.deepcopy(model.state_dict())
    report = fire_(model, blend=0.5)
    for row in report:
        old, new = matrices(before[row.name]), matrices(model.get_parameter(row.name))
        for value, W in ((row.dfi_before, old), (row.dfi_after, new)):
            expected = float(((torch.linalg.svdvals(W) / row.scale).square() - 1).square().sum())
            assert value == pytest.approx(expected, rel=1e-5)
        assert row.sfe == pytest.approx(float((new - old).square().sum()), rel=1e-5)
        assert row.dfi_after < row.dfi_before
        assert (row.rank, row.completed) == (min(row.shape), 0)
    assert "projected by blend" in str(report)
    assert report.warnings == []
    assert not report.success()


def test_lost_directions_are_told_and_stay_lost():
    model = network()
    with torch.no_grad():
        model[2].weight[3:8] = 0
        model[0].weight[:, 1, 0, 2] = 0
        model[4].weight.zero_()
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(FireWarning) as caught:
        report = fire_(model, blend=0.5, init=network().state_dict())
    assert [str(warning.message) for warning in caught] == report.warnings
    assert report.warnings == [
        'zero matrices have no nearest isometry and stay zero: 4.weight; blend=1, solver="exact" with other values '
        "in init fills them",
        "blend=0.5 does not bring back directions that a weight has lost: 0.weight (rank 2 of 3), 2.weight "
        '(rank 15 of 20); blend=1 with solver="exact" fills them',
    ]
    assert [(row.rank, row.completed, row.zeros) for row in report] == [
        (2, 0, 0), (15, 0, 0), (20, 0, 0), (0, 0, 1), (4, 0, 0)
    ]  # fmt: skip
    assert not model[4].weight.any()
    assert_blended(model, before, report, 0.5)
    for t in (0.0, 1.0):  # at 0 nothing is done, and at 1 the weight is made whole
        model.load_state_dict(before)
        report = fire_(model, solver="exact", blend=t, init=network().state_dict(), exclude="4.weight")
        assert report.warnings == []
        assert [row.rank for row in report] == ([None] * 4 if t == 0 else [2, 15, 20, 4])
        assert report.total("completed") == (0 if t == 0 else 2)


def test_weights_below_min_norm_stay_and_are_not_told_of():
    model = network()
    with torch.no_grad():
        model[2].weight[1:] = 0
        model[2].weight.mul_(1e-6)
    before = model[2].weight.detach().clone()
    report = fire_(model, blend=0.5, min_norm=1e-3)
    assert torch.equal(model[2].weight, before)
    assert (report.rows[1].action, report.warnings) == ("skip", [])


def test_parts_of_the_way_add_up():
    """Half of the way and again half is three quarters; a twice-applied projection is the projection."""
    twice, once = network(), network()
    fire_(twice, blend=0.5)
    fire_(twice, blend=0.5)
    fire_(once, blend=0.75)
    for a, b in zip(twice.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_near_the_whole_way_it_is_the_exact_projection():
    near, exact = network(), network()
    fire_(near, blend=1 - 1e-6)
    fire_(exact, solver="exact")
    for a, b in zip(near.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_a_compiled_model_goes_on():
    torch._dynamo.reset()
    model = network().eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(2, 3, 5, 5)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        compiled(x)
        fire_(compiled, blend=0.5)
        torch.testing.assert_close(compiled(x), model(x))


# -------------------------------------------------------------------------------------- options without an effect


@pytest.mark.parametrize("blend", [0.0, 0.5])
@pytest.mark.parametrize(
    "options", [{"solver": "muon"}, {"iterations": 5}, {"norm_init": "spectral"}, {"tol": 0.1},
                {"solver": "exact", "iterations": 5}]
)  # fmt: skip
def test_options_of_steps_are_refused(options, blend):
    model = network()
    before = copy.deepcopy(model.state_dict())
    name = [*options][-1]
    with pytest.raises(ValueError, match=rf"^{name}={options[name]} has no effect with blend={blend}$"):
        fire_(model, blend=blend, **options)
    with pytest.raises(ValueError, match=rf"^{name}="):
        Projection(blend=blend, **options).check_idle()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert Fire(blend=blend, **options).idle_options() == {name: f"blend={blend}"}


def test_the_default_solver_and_exact_are_the_same():
    by_default, by_exact = network(), network()
    fire_(by_default, blend=0.5)
    fire_(by_exact, solver="exact", blend=0.5)
    assert all(torch.equal(a, b) for a, b in zip(by_default.parameters(), by_exact.parameters(), strict=True))


def test_the_method_leaves_out_what_tuned_values_say_of_steps():
    by_method, by_hand = network(), network()
    method = Fire(iterations=15, norm_init="spectral", blend=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.at_boundary(Net.of({"model": by_method}), Context(1, 1, torch.Generator()))
    fire_(by_hand, blend=0.5)
    assert all(torch.equal(a, b) for a, b in zip(by_method.parameters(), by_hand.parameters(), strict=True))
