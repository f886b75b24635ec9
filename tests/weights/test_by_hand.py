"""Layers that people write by hand: what cannot be read off them is kept and named, never taken for one matrix."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import fire_, matrices, muon_groups
from fire_core.errors import FireWarning
from fire_core.weights.layout import resolve


def reasons(model: nn.Module, **options: object) -> dict[str, str]:
    """Why each weight is kept; empty for those that are projected."""
    return {entry.name: entry.reason * (entry.action == "keep") for entry in resolve(model, **options)}  # type: ignore[arg-type]


class QKV(nn.Module):
    """The projection in a module of its own, within which no product stands."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.to_qkv(x).chunk(3, -1)


class Modulation(nn.Module):
    """Shift and scale of an input that has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale = self.lin(x).chunk(2, -1)
        return x * (1 + scale) + shift


class Gated(nn.Module):
    """A gate of a telling name and a value, each a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up_gate, self.up = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.up_gate(x)) * self.up(x)


class Half(nn.Module):
    """A gate written by hand."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value


class Stack(nn.Linear):
    """Three layers in one, stored (layers, in, out), with a bias each."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight = nn.Parameter(torch.randn(3, inputs, outputs))
        self.bias = nn.Parameter(torch.ones(3, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Conv1D(nn.Module):
    """Of the name of GPT-2's layer, and nothing else of it."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.weight = (nn.Parameter(torch.randn(4, 8)) for _ in range(2))


class Masked(nn.Linear):
    """As in MADE."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril())


class Mixing(nn.Module):
    """A gate beside a value, neither of them weight norm's."""

    def __init__(self) -> None:
        super().__init__()
        self.W_v, self.W_g = (nn.Parameter(torch.randn(4, 4)) for _ in "vg")


@pytest.mark.parametrize("example", [None, torch.randn(2, 5, 8)])
@pytest.mark.parametrize("layer", [QKV, Modulation])
def test_parts_that_meet_in_no_product_are_cut_where_the_code_cuts_them(
    layer: type[nn.Module], example: Tensor | None
) -> None:
    model = nn.Sequential(layer())
    fire_(model, solver="exact", example=example)
    weight = next(model.parameters()).detach()
    for part in weight.split(8):
        torch.testing.assert_close(torch.linalg.svdvals(part), torch.ones(8), atol=1e-4, rtol=0)


def test_rows_that_meet_others_together_are_one_matrix() -> None:
    assert set(reasons(nn.Sequential(Gated())).values()) == {"", "a bias, a scale or another vector: no matrix"}


def test_the_next_layer_takes_half_of_what_comes() -> None:
    in_a_list = matrices(nn.ModuleList([nn.Sequential(nn.Linear(8, 16), Half(), nn.Linear(8, 8))])).rows()
    assert [row["block"] for row in in_a_list] == ["gate", "up", ""]
    cut = matrices(nn.Sequential(nn.Linear(8, 16), Half(), nn.Linear(8, 8)), example=torch.randn(3, 8)).rows()
    assert [row["block"] for row in cut] == ["gate", "up", ""]


def test_a_stack_of_layers_keeps_its_biases_and_its_orientation() -> None:
    model = nn.Sequential(Stack(4, 8), nn.ReLU(), Stack(8, 4))
    fire_(model, solver="exact")
    assert (model[0].bias == 1).all()
    torch.testing.assert_close(torch.linalg.svdvals(model[0].weight), torch.full((3, 4), 2**0.5))


def test_a_name_is_not_enough() -> None:
    for model in (Conv1D(), Mixing()):
        assert all("raw" in reason for reason in reasons(model).values())


def test_grouped_convolutions_are_not_cut() -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 1), nn.Conv1d(8, 16, 3, groups=2), nn.GLU(1), nn.Conv1d(8, 2, 1))
    assert "by nn.GLU" in reasons(model)["1.weight"]
    with pytest.warns(FireWarning, match=r"1.weight is kept; .* not known. Take it as one matrix, include='1.weight'$"):
        assert [row.name for row in fire_(model)] == ["0.weight", "3.weight"]


def test_what_is_no_matrix_is_called_by_its_name() -> None:
    model = nn.Sequential(Masked())
    model.register_parameter("kernel", nn.Parameter(torch.randn(1, 4, 4, 3, 3)))
    assert reasons(model)["0.weight"] == "Masked multiplies its weight with a mask first"
    assert "more than three dimensions" in reasons(model)["kernel"]


def test_a_raw_parameter_that_is_declared_is_a_layers_weight() -> None:
    model = Mixing()
    blocks = {"W_v": {"q": 2, "k": 2}}
    assert [entry.label for entry in resolve(model, blocks=blocks) if entry.action == "project"] == ["W_v[q]", "W_v[k]"]
    with pytest.warns(FireWarning, match=r"left to the other optimizer: 0\.W_g\."):
        groups = muon_groups(nn.Sequential(model, nn.Linear(4, 2)), blocks={"0.W_v": {"q": 2, "k": 2}})
    assert len(groups.muon) == 1
