"""Methods on weights in half precision: computed in float32 and rounded once, as `fire_` does; in float64 as well."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods import Context, Net
from fire_core.methods.dash import Dash

HALF = [torch.float16, torch.bfloat16]


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


def test_dash_refuses_data_without_a_batch() -> None:
    model = network(torch.float32)
    before = copy.deepcopy(model.state_dict())
    context = Context(1, 0, torch.Generator(), lambda: iter(()), lambda x, y: F.cross_entropy(model(x), y))
    with pytest.raises(ValueError, match="there is not one: the model is unchanged"):
        Dash().at_boundary(Net.of({"m": model}), context)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
