"""What an act leaves alone, and what it refuses before anything is changed: shared memory, overflow, padding rows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import FireWarning, fire_, shrink_and_perturb_


def spread(W: Tensor) -> float:
    """0 for an isometry."""
    values = torch.linalg.svdvals(W.detach().double())
    return float(values.max() / values.min()) - 1


def holder(**tensors: Tensor) -> nn.Module:
    """A module with a linear layer `a` of a given weight, and other tensors as parameters or buffers."""
    model = nn.Module()
    for name, tensor in tensors.items():
        if name == "weight":
            model.a = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False)
            model.a.weight = nn.Parameter(tensor)
        elif name.startswith("buffer"):
            model.register_buffer(name, tensor)
        else:
            model.register_parameter(name, nn.Parameter(tensor))
    return model


def memory(count: int = 60) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def flat(first: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        buffer = memory()
        return holder(weight=first(buffer), **{name: other(buffer)})

    return build


def block(buffer: Tensor) -> Tensor:
    return buffer[:30].view(6, 5)


OVERLAPPING: dict[str, Callable[[], nn.Module]] = {
    "the end of one is the beginning of another": flat(block, lambda b: b[25:35], "gain"),
    "a buffer": flat(block, lambda b: b[:6], "buffer"),
    "one row": flat(block, lambda b: b[10:15], "gain"),
    "one column": flat(block, lambda b: block(b)[:, 3], "gain"),
    "columns that meet": flat(lambda b: b.view(6, 10)[:, :6], lambda b: b.view(6, 10)[:, 5:], "other"),
    "a transposed view": flat(block, lambda b: block(b).T, "other"),
    "other numbers of the same bytes": flat(block, lambda b: b[:30].view(torch.bfloat16)[:4], "narrow"),
    "windows within one weight": lambda: holder(weight=torch.as_strided(memory(30), (8, 8), (1, 3))),
    "unfolded": lambda: holder(weight=memory(20).unfold(0, 4, 2)),
    "expanded": lambda: holder(weight=memory(5).expand(6, 5)),
}
APART: dict[str, Callable[[], nn.Module]] = {
    "one after the other": flat(block, lambda b: b[30:], "gain"),
    "columns side by side": flat(lambda b: b.view(6, 10)[:, :5], lambda b: b.view(6, 10)[:, 5:], "other"),
    "every other row": flat(lambda b: b.view(6, 10)[::2], lambda b: b.view(6, 10)[1::2], "other"),
    "one row that is a view": lambda: holder(weight=memory(8).view(1, 8)),
}


@pytest.mark.parametrize("name", OVERLAPPING)
@pytest.mark.parametrize("act", ["fire", "shrink"])
def test_shared_memory_is_refused_and_nothing_is_changed(name: str, act: str) -> None:
    model = OVERLAPPING[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    acts = {
        "fire": lambda: fire_(model, solver="exact"),
        "shrink": lambda: shrink_and_perturb_(model, {key: value + 1 for key, value in before.items()}),
    }
    with pytest.raises(ValueError, match=r"a\.weight .*(same memory|one place of memory)"):
        acts[act]()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:50 % of the model's numbers are raw parameters:fire_core.errors.FireWarning")
@pytest.mark.parametrize("name", APART)
def test_views_that_share_no_number_are_projected(name: str) -> None:
    model = APART[name]()
    others = {key: value.clone() for key, value in model.state_dict().items() if key != "a.weight"}
    fire_(model, solver="exact", trainable_only=False, layout="all")
    assert spread(model.a.weight) < 1e-5
    assert all(torch.equal(value, others[key]) for key, value in model.state_dict().items() if key != "a.weight")


# ------------------------------------------------------------------------------------------------------ finite results


@pytest.mark.parametrize("options", [{}, {"solver": "exact"}, {"blend": 0.5}])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_near_the_largest_number_stay_finite_or_are_refused(dtype: torch.dtype, options: Any) -> None:
    """All or nothing: a small layer before it is not projected either."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.Linear(30, 11, bias=False, dtype=dtype))
    W = torch.randn(11, 30).double()
    with torch.no_grad():
        model[1].weight.copy_(W * (0.99 * torch.finfo(dtype).max / W.abs().max()))
    before = copy.deepcopy(model.state_dict())
    refused = ""
    try:
        fire_(model, scale="keep_norm", **options)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert "scale=keep_norm makes 1.weight larger than" in refused
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_blend_of_zero_changes_and_refuses_nothing() -> None:
    """A weight near the largest number is far above this scale: divided by it, it would not be finite."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False, dtype=torch.float16))
    with torch.no_grad():
        model[0].weight.copy_(0.99 * torch.finfo(torch.float16).max * torch.eye(4))
    before = model[0].weight.detach().clone()
    fire_(model, blend=0, scale="variance_factor", variance_factor=1e-3)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": "variance_factor", "variance_factor": 1e12},
        {"scale": "match_init", "init": {"0.weight": torch.eye(4), "1.weight": torch.full((3, 4), 1e5)}},
        {"scale": "init_norm", "init": {"0.weight": torch.eye(4), "1.weight": torch.full((3, 4), 1e6)}},
        {"layout": {"1.*": "reinit"}, "init": {"1.weight": torch.full((3, 4), 1e5), "1.bias": torch.ones(3)}},
    ],
)
def test_a_scale_or_an_initial_value_that_the_dtype_cannot_hold_is_refused(options: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).half()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the model is unchanged"):
        fire_(model, **options)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_shrink_and_perturb_writes_no_nan_and_heals_one() -> None:
    model = nn.Linear(3, 3)
    good = copy.deepcopy(model.state_dict())
    bad = good | {"weight": torch.full((3, 3), float("inf"))}
    with pytest.raises(ValueError, match=r"NaN or Inf in init\['weight'\]"):
        shrink_and_perturb_(model, bad)
    assert torch.equal(model.weight, good["weight"])
    with torch.no_grad():
        model.weight[0] = float("nan")
    with pytest.raises(ValueError, match="NaN or Inf in weight"):
        shrink_and_perturb_(model, good)
    shrink_and_perturb_(model, good, coef=1)
    assert torch.equal(model.weight, good["weight"])


def test_a_zero_weight_that_keeps_its_norm_stays_zero() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    init = copy.deepcopy(model.state_dict())
    nn.init.zeros_(model[0].weight)
    with pytest.warns(FireWarning, match=r"stay zero: 0\.weight; scale=\"keep_norm\" keeps their norm, which is 0"):
        report = fire_(model, solver="exact", scale="keep_norm", init=init)
    assert report.rows[0].norm_after == 0
    assert not model[0].weight.any()
    fire_(model, solver="exact", scale="match_init", init=init)
    assert spread(model[0].weight) < 1e-5


# -------------------------------------------------------------------------------------------------------- padding rows


@pytest.mark.filterwarnings("ignore:blend=0.5 does not bring back directions:fire_core.errors.FireWarning")
@pytest.mark.filterwarnings("ignore:nothing was projected:fire_core.errors.FireWarning")  # a large min_norm
@pytest.mark.parametrize("options", [{}, {"solver": "exact"}, {"solver": "muon"}, {"blend": 0.5}, {"min_norm": 100.0}])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(("count", "width"), [(4, 10), (10, 4), (5, 5)])
@pytest.mark.parametrize("padding", [0, 2, -1])
def test_a_padding_row_stays_zero(kind: Any, count: int, width: int, padding: int, options: Any) -> None:
    torch.manual_seed(0)
    layer = kind(count, width, padding_idx=padding)
    fire_(layer, include="weight", **options)
    assert not layer.weight[padding].any()
    if options == {"solver": "exact"}:
        others = [i for i in range(count) if i != padding % count]
        assert spread(layer.weight[others]) < 1e-5


def test_a_padding_row_that_is_not_zero_stays_as_it_is() -> None:
    """The others are projected as if it were not there."""
    torch.manual_seed(0)
    layer = nn.Embedding.from_pretrained(torch.randn(4, 10), freeze=False, padding_idx=1)
    row = layer.weight[1].detach().clone()
    fire_(layer, include="weight", solver="exact")
    assert torch.equal(layer.weight[1], row)
    assert spread(layer.weight[[0, 2, 3]]) < 1e-5


def test_a_padding_row_of_an_embedding_that_is_the_head() -> None:
    """Zero it stays zero; otherwise the head has trained it, and it is a row like others."""
    for zero in (True, False):
        torch.manual_seed(0)
        model = nn.ModuleDict({"embed": nn.Embedding(5, 8, padding_idx=0), "head": nn.Linear(8, 5, bias=False)})
        model["head"].weight = model["embed"].weight
        if not zero:
            nn.init.normal_(model["head"].weight)
        fire_(model, solver="exact")
        assert spread(model["head"].weight[1 if zero else 0 :]) < 1e-5
        assert bool(model["head"].weight[0].any()) != zero
