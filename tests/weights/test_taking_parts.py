"""How parts of a layer's output are taken: by helpers on the line of a cut, in loops, along the second axis of an input
with an unknown number of axes; and weights that are used without their layer."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fire_core import fire_, matrices
from fire_core.weights import source

D = 12

pytestmark = pytest.mark.filterwarnings("ignore:.*kept", "ignore:.*looks fused", "ignore:nothing was projected")


@pytest.fixture(autouse=True)
def _errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STRICT", True)


def blocks(model: nn.Module, name: str, example: Any = None) -> list[slice] | None:
    """The rows of each matrix that a weight holds; None if it is kept as perhaps fused or changed. `fire_` agrees."""
    entries = [entry for entry in matrices(model, example=example) if entry.name == name]
    report = fire_(copy.deepcopy(model), solver="exact", example=example)
    projected = [row for row in report.rows if row.name.partition("[")[0] == name]
    if entries[0].role in ("fused", "changed", "unused"):
        assert not projected
        return None
    assert len(projected) == len(entries)
    return [slice(*entry.rows) if entry.rows else slice(0, entry.d_out) for entry in entries]


def rotated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (rotated(half) for half in self.qk(x).chunk(2, -1))
        return (q @ k.mT).softmax(-1) @ self.v(x)


class SlicedAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        h = self.qk(x)
        return (rotated(h[..., :D]) @ rotated(h[..., D:]).mT).softmax(-1) @ self.v(x)


def scaled_by_parts(x: Tensor) -> Tensor:
    return torch.stack([part * part.std() for part in x.unbind(-1)], -1)


class GateWithHelper(Attention):
    def forward(self, x: Tensor) -> Tensor:
        h = self.qk(x)
        return F.silu(h[..., :D]) * scaled_by_parts(h[..., D:])


@pytest.mark.parametrize("model", [Attention, SlicedAttention, GateWithHelper])
@pytest.mark.parametrize("with_example", [False, True])
def test_a_helper_that_takes_parts_on_the_line_of_a_cut(model: type[nn.Module], with_example: bool) -> None:
    example = torch.randn(2, 5, D) if with_example else None
    assert blocks(model(), "qk.weight", example) == [slice(0, D), slice(D, 2 * D)]


class Modulated(nn.Module):
    """Two layers, with a scale and a shift for each that one layer computes from a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.film = nn.Linear(5, 32)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scales, shifts = self.film(condition).view(-1, 2, 16).split(8, -1)
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x) * scales[:, i] + shifts[:, i])
        return x


class ModulatedByOffset(Modulated):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        film = self.film(condition)
        for i, layer in enumerate(self.layers):
            at = 16 * i
            x = F.relu(layer(x) * film[:, at : at + 8] + film[:, at + 8 : at + 16])
        return x


class ModulatedByZip(Modulated):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for layer, part in zip(self.layers, self.film(condition).chunk(2, -1), strict=True):
            scale, shift = part.chunk(2, -1)
            x = F.relu(layer(x) * scale + shift)
        return x


@pytest.mark.parametrize("model", [Modulated, ModulatedByOffset, ModulatedByZip])
@pytest.mark.parametrize("with_example", [False, True])
def test_parts_that_a_loop_takes_at_one_place_are_not_made_one(model: type[nn.Module], with_example: bool) -> None:
    example = (torch.randn(2, 8), torch.randn(2, 5)) if with_example else None
    assert blocks(model(), "film.weight", example) is None


class HeadByHead(nn.Module):
    """Attention whose heads are computed one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        heads = []
        for i in range(3):
            rows = slice(4 * i, 4 * i + 4)
            heads.append((q[..., rows] @ k[..., rows].mT).softmax(-1) @ v[..., rows])
        return self.out(torch.cat(heads, -1))


@pytest.mark.parametrize("with_example", [False, True])
def test_heads_that_are_computed_one_by_one_are_one_matrix(with_example: bool) -> None:
    assert blocks(HeadByHead(), "q.weight", torch.randn(2, 5, D) if with_example else None) == [slice(0, D)]


class Encoder(nn.Module):
    """A variational autoencoder: `cut` takes the mean and the logarithm of the variance from one output."""

    def __init__(self, cut: Any) -> None:
        super().__init__()
        self.encoder, self.decoder, self.cut = nn.Linear(D, 8), nn.Linear(4, D), cut
        self.register_buffer("odd", torch.arange(1, 8, 2), persistent=False)
        self.size = 4

    def forward(self, x: Tensor) -> Any:
        mean, variance = self.cut(self, self.encoder(x))
        return self.decoder(mean + torch.randn_like(mean) * (variance / 2).exp())


def by_half_its_size(model: Any, h: Tensor) -> Any:
    half = h.size(1) // 2
    return h[:, :half], h[:, half:]


def by_unpacked_shape(model: Any, h: Tensor) -> Any:
    _, count = h.shape
    return h[:, : count // 2], h[:, count // 2 :]


def from_the_end(model: Any, h: Tensor) -> Any:
    return h[:, : model.size], h[:, -model.size :]


def by_narrow(model: Any, h: Tensor) -> Any:
    return h.narrow(1, 0, model.size), h.narrow(1, model.size, model.size)


def by_selection(model: Any, h: Tensor) -> Any:
    return h.index_select(1, model.odd - 1), h.index_select(1, model.odd)


def by_a_list(model: Any, h: Tensor) -> Any:
    return h[:, [0, 1, 2, 3]], h[:, [4, 5, 6, 7]]


def by_a_view(model: Any, h: Tensor) -> Any:
    h = h.unflatten(-1, (2, 4))
    return h[:, 0], h[:, 1]


def by_steps(model: Any, h: Tensor) -> Any:
    return h[:, 0::2], h[:, 1::2]


@pytest.mark.parametrize(
    "cut", [by_half_its_size, by_unpacked_shape, from_the_end, by_narrow, by_selection, by_a_list, by_a_view, by_steps]
)
@pytest.mark.parametrize("with_example", [False, True])
def test_parts_along_the_second_axis_of_a_batch_of_vectors(cut: Any, with_example: bool) -> None:
    """If nothing tells how many axes an input has, they are matrices of their own, or the weight is kept."""
    model = Encoder(cut)
    torch.manual_seed(0)
    example = torch.randn(3, D) if with_example else None
    report = fire_(model, solver="exact", example=example)
    if with_example:
        assert [row.name for row in report.rows if row.name.startswith("encoder")]
    if any(row.name.startswith("encoder") for row in report.rows):
        weight = model.encoder.weight.detach()
        mean, variance = (weight[::2], weight[1::2]) if cut in (by_steps, by_selection) else weight.chunk(2)
        for part in (mean, variance):
            torch.testing.assert_close(torch.linalg.svdvals(part), torch.full((4,), (4 / D) ** 0.5))


class Positions(nn.Module):
    """The same index takes positions of an input with three axes: `encoder` is one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.first, self.second = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        half = h.size(1) // 2
        return self.first(h[:, :half]) + self.second(h[:, half:])


def test_an_example_tells_positions_from_features() -> None:
    assert blocks(Positions(), "encoder.weight", torch.randn(2, 6, D)) == [slice(0, D)]
    assert blocks(Positions(), "encoder.weight") is None or blocks(Positions(), "encoder.weight") == [slice(0, D)]


class Halves(nn.Module):
    """A model that runs on inputs of two axes and of three, and uses another axis in each."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        half = h.size(1) // 2
        return h[:, :half].tanh() * h[:, half:].sigmoid()


def test_without_an_example_a_cut_that_depends_on_the_input_is_a_doubt() -> None:
    assert blocks(Halves(), "encoder.weight") is None
    assert blocks(Halves(), "encoder.weight", torch.randn(3, D)) == [slice(0, 6), slice(6, D)]


class WithoutItsLayer(nn.Module):
    """`layer` is never called: `body` multiplies with its weight (12, 7)."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.first, self.layer, self.body = nn.Linear(D, D), nn.Linear(7, D, bias=False), body

    def forward(self, x: Tensor) -> Any:
        return self.body(self.layer.weight, self.first(x))


def backwards(weight: Tensor, h: Tensor) -> Tensor:
    return h @ weight


def backwards_by_linear(weight: Tensor, h: Tensor) -> Tensor:
    return F.linear(h, weight.t())


def backwards_from_the_left(weight: Tensor, h: Tensor) -> Tensor:
    return (weight.T @ h.T).T


def backwards_by_einsum(weight: Tensor, h: Tensor) -> Tensor:
    return torch.einsum("bo,oi->bi", h, weight)


def backwards_by_addmm(weight: Tensor, h: Tensor) -> Tensor:
    return torch.addmm(h[:, :7], h, weight)


def backwards_by_short_einsum(weight: Tensor, h: Tensor) -> Tensor:
    return torch.einsum("bo,oi", h, weight)


def backwards_by_permute(weight: Tensor, h: Tensor) -> Tensor:
    return F.linear(h, weight.permute(1, 0))


def backwards_after_no_turn(weight: Tensor, h: Tensor) -> Tensor:
    return h @ weight.permute(0, 1)


def by_vector(weight: Tensor, h: Tensor) -> Tensor:
    return weight.t().mv(h[0])


def forwards(weight: Tensor, h: Tensor) -> Tensor:
    return F.linear(h[:, :7], weight)


def forwards_by_product(weight: Tensor, h: Tensor) -> Tensor:
    return h[:, :7] @ weight.T


@pytest.mark.parametrize(
    ("body", "scale"),
    [
        (backwards, (7 / 12) ** 0.5),
        (backwards_by_linear, (7 / 12) ** 0.5),
        (backwards_from_the_left, (7 / 12) ** 0.5),
        (backwards_by_einsum, (7 / 12) ** 0.5),
        (backwards_by_addmm, (7 / 12) ** 0.5),
        (backwards_by_short_einsum, (7 / 12) ** 0.5),
        (backwards_by_permute, (7 / 12) ** 0.5),
        (backwards_after_no_turn, (7 / 12) ** 0.5),
        (by_vector, (7 / 12) ** 0.5),
        (forwards, (12 / 7) ** 0.5),
        (forwards_by_product, (12 / 7) ** 0.5),
    ],
)
def test_a_weight_that_is_used_without_its_layer_is_scaled_as_it_multiplies(body: Any, scale: float) -> None:
    model = WithoutItsLayer(body)
    fire_(model, solver="exact")
    torch.testing.assert_close(torch.linalg.svdvals(model.layer.weight.detach()), torch.full((7,), scale))


def by_tensordot(weight: Tensor, h: Tensor) -> Tensor:
    return torch.tensordot(h, weight, 1)


def test_a_weight_of_which_the_code_does_not_tell_the_inputs_is_kept() -> None:
    assert blocks(WithoutItsLayer(by_tensordot), "layer.weight") is None


class ColumnsOnly(nn.Module):
    """A layer of which only the first columns are multiplied, as in slimmable networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide = nn.Linear(D, 8), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return F.linear(h, self.wide.weight[:, : h.shape[-1]])


def test_an_example_does_not_make_a_whole_of_some_columns() -> None:
    for example in (None, torch.randn(3, D)):
        assert blocks(ColumnsOnly(), "wide.weight", example) is None


class Functional(nn.Module):
    """A network that is called with other weights than its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
        self.shifts = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(torch.randn_like(p)) for name, p in self.net.named_parameters()}
        )

    def forward(self, x: Tensor) -> Any:
        shifted = {name: p + self.shifts[name.replace(".", "_")] for name, p in self.net.named_parameters()}
        return functional_call(self.net, shifted, (x,))


class FunctionalInPart(Functional):
    def forward(self, x: Tensor) -> Any:
        weights = dict(self.net.named_parameters())
        weights["0.weight"] = weights["0.weight"] + self.shifts["0_weight"]
        return torch.func.functional_call(self.net, weights, x)


class FunctionalInALoop(Functional):
    def forward(self, x: Tensor) -> Any:
        weights = {}
        for name, p in self.net.named_parameters():
            weights[name] = p - 0.1 * self.shifts[name.replace(".", "_")]
        return functional_call(self.net, args=(x,), parameter_and_buffer_dicts=weights)


class FunctionalAsStored(Functional):
    def forward(self, x: Tensor) -> Any:
        return functional_call(self.net, dict(self.net.named_parameters()), (x,))


class FunctionalJoined(Functional):
    def forward(self, x: Tensor) -> Any:
        own = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        return functional_call(self.net, own, (x,))


class FunctionalOfBoth(Functional):
    def forward(self, x: Tensor) -> Any:
        own = dict(self.net.named_parameters()), dict(self.net.named_buffers())
        return functional_call(self.net, own, (x,))


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (Functional, ["net.0.weight", "net.2.weight"]),
        (FunctionalInPart, ["net.0.weight"]),
        (FunctionalInALoop, ["net.0.weight", "net.2.weight"]),
        (FunctionalAsStored, []),
        (FunctionalJoined, []),
        (FunctionalOfBoth, []),
    ],
)
@pytest.mark.parametrize("with_example", [False, True])
def test_weights_that_functional_call_replaces_are_kept(
    model: type[nn.Module], kept: list[str], with_example: bool
) -> None:
    example = torch.randn(3, D) if with_example else None
    for name in ("net.0.weight", "net.2.weight"):
        assert (blocks(model(), name, example) is None) is (name in kept), name


class FunctionalOfAnArgument(Functional):
    def forward(self, x: Tensor, weights: Any = None) -> Any:
        return functional_call(self.net, weights or {}, (x,))


def test_weights_that_functional_call_may_replace_are_kept() -> None:
    """What the caller gives is not known."""
    assert blocks(FunctionalOfAnArgument(), "net.0.weight") is None


class SplitAttention(nn.Module):
    """Three parts of one output, of which each position takes a weighted sum."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.weigh, self.out = nn.Linear(D, 3 * D), nn.Linear(D, 3), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.parts(x).chunk(3, -1)
        weights = self.weigh(x).softmax(-1)
        return self.out((torch.stack([a, b, c], -2) * weights[..., None]).sum(-2))


@pytest.mark.parametrize("with_example", [False, True])
def test_parts_of_a_weighted_sum_are_matrices_of_their_own(with_example: bool) -> None:
    example = torch.randn(3, D) if with_example else None
    assert blocks(SplitAttention(), "parts.weight", example) == [slice(0, D), slice(D, 2 * D), slice(2 * D, 3 * D)]


class ScaledSum(SplitAttention):
    """One number scales the sum as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        a, b, _ = self.parts(x).chunk(3, -1)
        return self.out((torch.stack([a, b], -2) * self.temperature).sum(-2))


class MaskedMean(SplitAttention):
    """A mean over positions of what was put side by side along another axis."""

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.stack(self.parts(x).chunk(3, -1), 1)
        return self.out((parts * self.weigh(x).mean(-1)[:, None, :, None]).mean(2)).sum(1)


@pytest.mark.parametrize("model", [ScaledSum, MaskedMean])
def test_what_weighs_no_part_by_itself_leaves_one_matrix(model: type[nn.Module]) -> None:
    assert blocks(model(), "parts.weight") == [slice(0, 3 * D)]
    assert blocks(model(), "parts.weight", torch.randn(2, 5, D)) == [slice(0, 3 * D)]


class Gradient(nn.Module):
    """A network that takes a gradient with respect to its input, as a Hamiltonian network does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, D), nn.Tanh(), nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_(True)
            return torch.autograd.grad(self.body(x).sum(), x, create_graph=True)[0]


def test_an_example_for_a_model_that_takes_gradients() -> None:
    report = fire_(Gradient(), example=torch.randn(3, 4))
    assert [row.name for row in report.rows] == ["body.0.weight", "body.2.weight", "body.4.weight"]


class NeedsHistory(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.grad_fn is None:
            raise RuntimeError("a leaf")
        return super().forward(x)


def test_a_model_that_runs_but_cannot_be_watched_is_told_apart_from_one_that_does_not_run() -> None:
    with pytest.raises(ValueError, match="example: the model runs on it, but not while its products are watched"):
        fire_(nn.Sequential(nn.Linear(4, 4), NeedsHistory(4, 4)), example=torch.randn(3, 4))
    with pytest.raises(ValueError, match="example: the model does not run on it: RuntimeError"):
        fire_(Gradient(), example=torch.randn(3, 5))
