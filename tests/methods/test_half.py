"""Methods on weights in half precision: computed in float32 and rounded once, as `fire_` does; in float64 as well."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods import Context, Net
from fire_core.methods.contrib.cpr import CalibratedPartialResets
from fire_core.methods.contrib.hare_tortoise import HareTortoise
from fire_core.methods.contrib.nap import NormalizeAndProject
from fire_core.methods.contrib.regrama import gradient_scores
from fire_core.methods.contrib.spectral import SpectralRegularisation
from fire_core.methods.contrib.trac import Trac
from fire_core.methods.dash import Dash
from fire_core.units.trace import unit_graph
from tests.methods.small import moment

HALF = [torch.float16, torch.bfloat16]
Batch = tuple[Tensor, Tensor]


def network(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


# ----------------------------------------------------------------------------------------------------------------- DASH


def shrunk(model: nn.Sequential, gradients_of: nn.Sequential) -> list[Tensor]:
    """The weights after DASH, with a loss whose gradients are those of another model."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.zeros(1, 5), torch.zeros(1)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        gradients = [p.grad for p in gradients_of.parameters()]
        return torch.stack([(p * g).sum() for p, g in zip(model.parameters(), gradients, strict=True)]).sum()

    net = Net.of({"m": model})
    Dash(minimum=0.01).at_boundary(net, Context(1, 0, torch.Generator(), batches, loss))
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
@pytest.mark.parametrize("dtype", HALF)
def test_dash_has_the_directions_of_float32(dtype: torch.dtype, size: float) -> None:
    """Squares of these sizes are 0 or infinity in float16."""
    model = network(dtype)
    for p in model.parameters():
        p.data.mul_(size)
        p.grad = torch.randn_like(p) * size
    wide = copy.deepcopy(model).float()
    for p, q in zip(model.parameters(), wide.parameters(), strict=True):
        q.grad = p.grad.float()
    expected = shrunk(wide, wide)
    for p, q in zip(shrunk(model, model), expected, strict=True):
        torch.testing.assert_close(p, q.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)


def test_dash_refuses_what_is_not_finite_and_changes_nothing() -> None:
    for place in ("weight", "gradient"):
        model = network(torch.float32)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        if place == "weight":
            model[2].weight.data[0, 0] = torch.nan
        else:
            model[2].weight.grad[0, 0] = torch.inf
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=r"NaN or Inf in .*2\.weight.*: the model is unchanged"):
            shrunk(model, model)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, before[key], rtol=0, atol=0, equal_nan=True)


NO_SAMPLES = torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)
SAMPLES = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])


def dash_on(model: nn.Sequential, batches: list[Batch], chunks: list[list[Batch]] | None) -> None:
    context = Context(1, 0, torch.Generator(), lambda: iter(batches), lambda x, y: F.cross_entropy(model(x), y))
    context.chunks = None if chunks is None else lambda: map(iter, chunks)
    Dash().at_boundary(Net.of({"m": model}), context)


@pytest.mark.parametrize("batches", [[], [NO_SAMPLES], [NO_SAMPLES, NO_SAMPLES]])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_dash_refuses_data_without_a_sample(batches: list[Batch], in_chunks: bool) -> None:
    model = network(torch.float32)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="there is no sample: the model is unchanged"):
        dash_on(model, batches, [batches, []] if in_chunks else None)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_batches_and_chunks_without_samples_change_nothing_in_dash() -> None:
    for batches, chunks in (([NO_SAMPLES, SAMPLES, NO_SAMPLES], None), ([], [[], [SAMPLES, NO_SAMPLES], [NO_SAMPLES]])):
        model, expected = network(torch.float32), network(torch.float32)
        dash_on(model, batches, chunks)
        dash_on(expected, [SAMPLES], None)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), expected.parameters(), strict=True))


def test_dash_refuses_a_network_that_is_wholly_frozen_or_kept() -> None:
    model = network(torch.float32)
    net = Net.of({"m": model})
    with pytest.raises(ValueError, match="can be shrunk: each is frozen"):
        Dash().at_boundary(net, Context(1, 0, torch.Generator(), spared=frozenset(model.parameters())))
    model.requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="can be shrunk: each is frozen"):
        Dash().check(net)


# ---------------------------------------------------------------------------------------------------------- all others


def narrow_and_wide(dtype: torch.dtype) -> tuple[Net, Net]:
    """A network in half precision, and one of the same numbers in float32, both with the same gradients."""
    models = [network(dtype), network(dtype).float()]
    for narrow, wide in zip(*(model.parameters() for model in models), strict=True):
        narrow.grad = torch.randn_like(narrow)
        wide.grad = narrow.grad.float()
    first, second = (Net.of({"m": model}) for model in models)
    return first, second


def assert_rounded(narrow: Net, wide: Net, dtype: torch.dtype) -> None:
    """The weights in half precision are those in float32, rounded once."""
    for p, q in zip(narrow.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), q.detach().to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [*HALF, torch.float64])
def test_cpr_resets_in_any_number_format(dtype: torch.dtype) -> None:
    narrow, wide = narrow_and_wide(dtype)
    for net in (narrow, wide):
        for p in net.parameters():
            p.grad[: len(p) // 2] = 0
        method = CalibratedPartialResets(rate=0.5, every=1)
        with method.watch(net):
            method.after_step(net, moment())
            method.after_step(net, moment())
        assert all(utility.dtype != dtype or dtype == torch.float64 for utility in method.utility)
    assert_rounded(narrow, wide, dtype)


def test_regrama_scores_gradients_that_are_all_zero_in_half_precision() -> None:
    narrow, _ = narrow_and_wide(torch.float16)
    for p in narrow.parameters():
        p.grad.zero_()
    assert all(gradient_scores(units).eq(0).all() for units in unit_graph(narrow.modules))


@pytest.mark.parametrize("dtype", HALF)
def test_trac_steps_in_half_precision(dtype: torch.dtype) -> None:
    narrow, wide = narrow_and_wide(dtype)
    for net in (narrow, wide):
        method = Trac()
        with method.watch(net):
            for step in range(3):
                method.before_step(net, moment(step))
                with torch.no_grad():
                    for p in net.parameters():
                        p.sub_(p.grad, alpha=0.125)
                method.after_step(net, moment(step))
    assert all(p.isfinite().all() for p in narrow.parameters())
    for p, q in zip(narrow.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(p.float(), q, rtol=0, atol=0.05)


@pytest.mark.parametrize("dtype", HALF)
def test_nap_keeps_norms_in_half_precision(dtype: torch.dtype) -> None:
    narrow, wide = narrow_and_wide(dtype)
    for net in (narrow, wide):
        with torch.no_grad():
            net.modules["m"][0].weight.mul_(300)  # whose square is infinite in float16
        NormalizeAndProject().after_step(net, moment())
    assert_rounded(narrow, wide, dtype)
    with torch.no_grad():
        narrow.modules["m"][0].weight.zero_()
    NormalizeAndProject().after_step(narrow, moment())
    assert not narrow.modules["m"][0].weight.any()


@pytest.mark.parametrize("dtype", HALF)
def test_the_tortoise_follows_in_half_precision(dtype: torch.dtype) -> None:
    narrow, wide = narrow_and_wide(dtype)
    for net in (narrow, wide):
        method = HareTortoise(momentum=0.999, every=1)
        method.before_step(net, moment())
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(2)
        for step in range(500):
            method.after_step(net, moment(step))
        method.after_epoch(net, moment())
    assert_rounded(narrow, wide, dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_the_spectral_penalty_in_half_precision(dtype: torch.dtype) -> None:
    penalties = []
    for net in narrow_and_wide(dtype):
        with torch.no_grad():
            net.modules["m"][0].bias.fill_(100)  # the fourth power of its norm is infinite in float16
        penalties.append(SpectralRegularisation().penalty(net))
    torch.testing.assert_close(*penalties, check_dtype=False)
    penalties[0].backward()
