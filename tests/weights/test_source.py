"""Layers whose output is cut under any name and in any spelling: each part is an isometry, or the weight is kept and
named with the line that cuts it. What is cut nowhere is one matrix, whatever it is called."""

import functools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import fire_, matrices, muon_groups
from fire_core.weights import source
from fire_core.weights.layout import resolve

D = 12
TOKENS = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the reader is one here; elsewhere the reader goes on without what it could not follow."""
    monkeypatch.setattr(source, "STRICT", True)


class Layer(nn.Module):
    """A layer `mix` with three or two times as many rows, and one after it; `body` is the forward pass."""

    def __init__(self, rows: int = 3 * D, out: int = D, body: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.d, self.heads, self.body = D, 3, body
        self.config = SimpleNamespace(width=D, heads=3, sizes=[D, D, D])
        self.mix, self.out = nn.Linear(D, rows), nn.Linear(out, D)
        self.act = nn.SiLU()
        self.name = "mix"

    def forward(self, x: Tensor) -> Tensor:
        assert self.body is not None
        return self.body(self, x)

    def first(self, x: Tensor) -> Tensor:
        return getattr(self, self.name)(x)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.mix(x).chunk(3, dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


def of_chunk(s: Any, x: Tensor) -> Tensor:
    q, k, v = s.mix(x).chunk(3, -1)
    return s.out(attend(q, k, v))


def of_split_keyword(s: Any, x: Tensor) -> Tensor:
    q, k, v = torch.split(s.mix(x), split_size_or_sections=s.config.width, dim=-1)
    return s.out(attend(q, k, v))


def of_sizes_in_a_config(s: Any, x: Tensor) -> Tensor:
    parts = s.mix(x).split(s.config.sizes, dim=2)
    return s.out(attend(parts[0], parts[1], parts[2]))


def of_tensor_split(s: Any, x: Tensor) -> Tensor:
    return s.out(attend(*torch.tensor_split(s.mix(x), 3, -1)))


def of_unflatten(s: Any, x: Tensor) -> Tensor:
    q, k, v = s.mix(x).unflatten(-1, (3, s.d)).unbind(-2)
    return s.out(attend(q, k, v))


def of_reshape_and_index(s: Any, x: Tensor) -> Tensor:
    b, t, c = x.shape
    qkv = s.mix(x).reshape(b, t, 3, s.heads, c // s.heads).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    return s.out(attend(q, k, v).transpose(1, 2).reshape(b, t, c))


def of_narrow(s: Any, x: Tensor) -> Tensor:
    y = s.mix(x)
    q, k, v = (y.narrow(-1, i * s.d, s.d) for i in range(3))
    return s.out(attend(q, k, v))


def of_slices(s: Any, x: Tensor) -> Tensor:
    y = s.mix(x)
    return s.out(attend(y[..., : s.d], y[..., s.d : 2 * s.d], y[:, :, 2 * s.d :]))


def of_a_method_and_map(s: Any, x: Tensor) -> Tensor:
    q, k, v = map(lambda t: t.unflatten(-1, (s.heads, -1)).transpose(1, 2), s.parts(x))  # noqa: C417
    return s.out(attend(q, k, v).transpose(1, 2).flatten(2))


def of_einops(s: Any, x: Tensor) -> Tensor:
    from einops import rearrange

    q, k, v = rearrange(s.mix(x), "b t (three h d) -> three b h t d", three=3, h=s.heads)
    return s.out(rearrange(attend(q, k, v), "b h t d -> b t (h d)"))


def of_weight_slices(s: Any, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w) for w in s.mix.weight.chunk(3))
    return s.out(attend(q, k, v))


def of_a_loop(s: Any, x: Tensor) -> Tensor:
    kept = []
    for part in s.mix(x).chunk(3, -1):
        kept.append(part)
    return s.out(attend(kept[0], kept[1], kept[2]))


def of_functional(s: Any, x: Tensor) -> Tensor:
    y = F.linear(x, s.mix.weight, s.mix.bias)
    q, k, v = y.chunk(3, -1)
    return s.out((q @ k.transpose(-2, -1)).softmax(-1) @ v)


ATTENTIONS = [of_chunk, of_split_keyword, of_sizes_in_a_config, of_tensor_split, of_unflatten, of_reshape_and_index]
ATTENTIONS += [of_narrow, of_slices, of_a_method_and_map, of_einops, of_weight_slices, of_a_loop, of_functional]


def gate_of_silu(s: Any, x: Tensor) -> Tensor:
    a, b = s.mix(x).chunk(2, -1)
    return s.out(s.act(a) * b)


def gate_of_helper(s: Any, x: Tensor) -> Tensor:
    a, b = halves(s.mix(x))
    return s.out(torch.sigmoid(b).mul(a))


def gate_of_glu(s: Any, x: Tensor) -> Tensor:
    return s.out(F.glu(s.mix(x), dim=-1))


def gate_of_every_other_row(s: Any, x: Tensor) -> Tensor:
    y = s.mix(x)
    return s.out(F.gelu(y[..., 0::2]) * y[..., 1::2])


def bilinear_halves(s: Any, x: Tensor) -> Tensor:
    a, b = s.mix(x).split(s.d, -1)
    return s.out(a * b)


def maxout(s: Any, x: Tensor) -> Tensor:
    a, b = s.mix(x).chunk(2, dim=-1)
    return s.out(torch.maximum(a, b))


def shift_and_scale(s: Any, x: Tensor) -> Tensor:
    shift, scale = s.mix(x.mean(1, keepdim=True)).chunk(2, -1)
    return s.out(x * (1 + scale) + shift)


def mean_and_deviation(s: Any, x: Tensor) -> Tensor:
    mean, log_std = torch.chunk(s.mix(x), chunks=2, dim=-1)
    return s.out(mean + log_std.clamp(-5, 2).exp() * 0.1)


def two_readers(s: Any, x: Tensor) -> Tensor:
    a, b = s.mix(x)[..., : s.d], s.mix(x)[..., s.d :]
    return s.out(a) + s.out(b.tanh())


def after_an_activation(s: Any, x: Tensor) -> Tensor:
    a, b = F.relu(s.mix(x)).chunk(2, -1)
    return s.out(a.cumsum(1) * b)


GATES = [gate_of_silu, gate_of_helper, gate_of_glu, gate_of_every_other_row, bilinear_halves, maxout]
GATES += [shift_and_scale, mean_and_deviation, two_readers, after_an_activation]

# Each spelling, and the rows of each part that it makes.
CUTS: dict[str, tuple[Callable[..., Tensor], list[slice]]] = {
    **{body.__name__: (body, [slice(i * D, (i + 1) * D) for i in range(3)]) for body in ATTENTIONS},
    **{body.__name__: (body, [slice(i * D, (i + 1) * D) for i in range(2)]) for body in GATES},
    "gate_of_every_other_row": (gate_of_every_other_row, [slice(0, None, 2), slice(1, None, 2)]),
}


def check_parts(weight: Tensor, rows: list[slice]) -> None:
    for part in rows:
        values = torch.linalg.svdvals(weight.detach()[part].flatten(1).double())
        torch.testing.assert_close(values, torch.full_like(values, float(values.mean())), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_in_any_spelling_is_read_off_a_pass_on_an_example(name: str) -> None:
    torch.manual_seed(0)
    body, rows = CUTS[name]
    model = Layer(len(rows) * D, body=body)
    report = fire_(model, solver="exact", example=TOKENS)
    assert not report.warnings
    check_parts(model.mix.weight, rows)
    assert {row.name for row in report if "[" not in row.name} == {"out.weight"}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.filterwarnings("ignore")
def test_without_an_example_it_is_cut_or_kept_and_named_with_the_line(name: str) -> None:
    torch.manual_seed(0)
    body, rows = CUTS[name]

    class Needy(Layer):
        def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
            return super().forward(x) + cache["past"]

    runs, needy = Layer(len(rows) * D, body=body), Needy(len(rows) * D, body=body)
    report = fire_(runs, solver="exact")
    assert "mix.weight" in report.kept or not check_parts(runs.mix.weight, rows)
    kept = {entry.label: entry for entry in resolve(needy)}.get("mix.weight")
    if kept is None:  # the code states into how many features it cuts
        fire_(needy, solver="exact")
        check_parts(needy.mix.weight, rows)
        return
    assert kept.action == "keep"
    assert re.search(r"\(test_source\.py:\d+\)|looks fused", kept.reason)
    with pytest.raises(ValueError, match=r"strict=True: mix\.weight is kept"):
        resolve(needy, strict=True)
    assert "mix.weight" not in {m.name for m in matrices(needy) if m.role != "fused"}
    muon = muon_groups(nn.Sequential(nn.Embedding(9, D), needy, nn.Linear(D, D), nn.Linear(D, 2))).muon
    assert all(p is not needy.mix.weight for group in muon for p in group["params"])


# ---------------------------------------------------------------------------------- what is not cut, whatever its name


def heads_alone(s: Any, x: Tensor) -> Tensor:
    y = s.first(x).view(2, -1, 4, 3 * s.d // 4)
    return s.out(y.flatten(2).sigmoid())


def last_position(s: Any, x: Tensor) -> Tensor:
    return s.out(s.first(x)[:, -1].tanh())


def first_and_rest(s: Any, x: Tensor) -> Tensor:
    y = s.first(x)
    return s.out(torch.cat([y[:, :1].tanh(), y[:, 1:]], 1))


def rotated(s: Any, x: Tensor) -> Tensor:
    y = s.first(x)
    a, b = y.chunk(2, dim=-1)
    return s.out((y * 0.5 + torch.cat((-b, a), -1) * 0.8).tanh())


def rotated_in_part(s: Any, x: Tensor) -> Tensor:
    y = s.first(x)
    turned, same = y[..., : s.d], y[..., s.d :]
    turned = turned * x.cos() + halves_swapped(turned) * x.sin()
    return s.out(torch.cat([turned, same], dim=-1).softmax(-1))


def halves_swapped(x: Tensor) -> Tensor:
    a, b = halves(x)
    return torch.cat([-b, a], -1)


def batch_in_two(s: Any, x: Tensor) -> Tensor:
    a, b = s.first(x).chunk(2)
    return s.out(torch.cat([a.tanh(), b.relu()]))


def chosen_action(s: Any, x: Tensor) -> Tensor:
    scores, action = s.first(x)[:, -1], x.argmax(-1)[:, 0]
    return s.out(scores * scores[:, action].diag()[:, None])


WHOLE = [heads_alone, last_position, first_and_rest, rotated, rotated_in_part, batch_in_two, chosen_action]


@pytest.mark.parametrize("body", WHOLE, ids=lambda body: body.__name__)
@pytest.mark.parametrize("name", ["mix", "qkv"])
def test_what_is_cut_nowhere_is_one_matrix(body: Callable[..., Tensor], name: str) -> None:
    model = Layer(3 * D, out=3 * D, body=body)
    model.name = name
    if name != "mix":
        model.add_module(name, model.mix)
        del model.mix
    for example in (None, TOKENS):
        entries = {entry.label: entry for entry in resolve(model, example=example, strict=True)}
        assert entries[f"{name}.weight"].action == "project", body.__name__


class Indexed(nn.Module):
    """Rows that are taken by a list of their places: two lists for two operations, or the same one twice."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.layer, self.out, self.same = nn.Linear(D, 2 * D), nn.Linear(D, D), same

    def forward(self, x: Tensor, mode: str) -> Tensor:
        y = self.layer(x)
        if self.same:
            chosen = y.index_select(-1, torch.arange(D))
            return self.out(chosen * torch.sigmoid(chosen))
        value = y.index_select(-1, torch.arange(0, 2 * D, 2))
        gate = torch.index_select(y, dim=-1, index=torch.arange(1, 2 * D, 2))
        return self.out(value * torch.sigmoid(gate))


@pytest.mark.parametrize(("same", "parts"), [(False, [(0, 1), (1, 2)]), (True, [None])])
def test_rows_that_are_taken_by_lists_of_places(same: bool, parts: list[Any]) -> None:
    entries = [entry for entry in resolve(nn.ModuleList([Indexed(same)])) if entry.name == "0.layer.weight"]
    assert [entry.rows for entry in entries] == parts
    assert {entry.repeats for entry in entries} == {1 if same else D}


# ------------------------------------------------------------------------------------ layers of a class of one's own


class Masked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(D, D)
        self.seen_pairs = torch.ones(D, D).tril()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.seen_pairs, self.bias)


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.div(self.weight.norm()), self.bias)


class Rounded(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().max() / 7
        rounded = torch.round(self.weight / step) * step
        return x @ rounded.T + self.bias


class Positive(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, weight=torch.exp(self.weight), bias=self.bias)


class Standard(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(D, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        centred = w - w.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, centred, self.bias)


class Gained(nn.Linear):
    def __init__(self) -> None:
        super().__init__(D, D)
        self.gain = nn.Parameter(torch.rand(D, 1) + 0.1)

    def weight_now(self) -> Tensor:
        return self.gain * F.normalize(self.weight, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_now(), self.bias)


@pytest.mark.parametrize("kind", [Masked, Scaled, Rounded, Positive, Standard, Gained])
@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_changes_its_weight_is_kept_and_named(kind: Callable[..., nn.Module]) -> None:
    layer = kind() if kind in (Masked, Standard, Gained) else kind(D, D)
    before = layer.weight.detach().clone()  # type: ignore[operator, union-attr]
    report = fire_(layer)
    assert torch.equal(layer.weight.detach(), before)  # type: ignore[operator, union-attr]
    assert any(line.startswith("weight") and "kept" in line for line in report.warnings)
    assert re.search(r"test_source\.py:\d+|forward", report.kept["weight"].reason)
    with pytest.raises(ValueError, match="strict=True"):
        fire_(layer, strict=True)
    assert [row.name for row in fire_(layer, include="weight")] == ["weight"]


class MaxNorm(nn.Linear):
    """As the constrained layers of networks for EEG."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data.renorm(2, 0, 0.5)  # no row is longer than 0.5
        return super().forward(x)


class Clamped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(min=0)
        return F.linear(x, self.weight, self.bias)


class Hollow(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight[0] = 0
        return super().forward(x)


class Triangular(nn.Linear):
    """Masked from its own forward pass, through a variable."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.data
        w *= torch.ones(D, D).tril()
        return super().forward(x)


class ByFunction(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        torch.clamp_(self.weight.data, min=0)
        return super().forward(x)


class Renormed(nn.Linear):
    """Its own weight is where a function of torch puts its result."""

    def forward(self, x: Tensor) -> Tensor:
        torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.5, out=self.weight.data)
        return super().forward(x)


class OfAnother(nn.Module):
    """The module around the layer writes to its weight, in a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, D)

    @property
    def weight(self) -> nn.Parameter:
        return self.layer.weight

    def normalise(self) -> None:
        self.layer.weight.data.copy_(F.normalize(self.layer.weight.data, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        self.normalise()
        return self.layer(x)


@pytest.mark.parametrize("kind", [MaxNorm, Clamped, Hollow, Triangular, ByFunction, Renormed, OfAnother])
@pytest.mark.parametrize("options", [{}, {"example": torch.randn(3, D)}], ids=["read", "example"])
@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_each_forward_pass_overwrites_is_kept_and_named(
    kind: Callable[..., nn.Module], options: dict[str, Any]
) -> None:
    layer: Any = kind() if kind is OfAnother else kind(D, D)
    layer(torch.randn(3, D))
    before = layer.weight.detach().clone()
    report = fire_(layer, **options)
    layer(torch.randn(3, D))
    assert torch.allclose(layer.weight.detach(), before)  # the pass has undone nothing, as nothing was done
    assert any(re.search(r"weight is kept: .* writes to the weight \(test_source", w) for w in report.warnings)
    assert len(fire_(layer, include="*weight").rows) == 1


def limit(module: Any, inputs: Any) -> None:
    """A hook before the forward pass, which keeps the rows short."""
    with torch.no_grad():
        module.weight.div_(module.weight.norm(dim=1, keepdim=True).clamp(min=1))


class Keeper:
    """Its method is a hook after the forward pass."""

    def clip(self, module: Any, inputs: Any, output: Any) -> None:
        module.weight.data.clamp_(-0.1, 0.1)


def watch(module: Any, inputs: Any, output: Any) -> None:
    """A hook that looks only."""
    module.product = F.linear(inputs[0], torch.exp(module.weight))


@pytest.mark.parametrize(("kind", "is_kept"), [("limit", True), ("clip", True), ("lambda", True), ("watch", False)])
@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_a_hook_of_its_layer_overwrites_is_kept(kind: str, is_kept: bool) -> None:
    layer = nn.Linear(D, D)
    if kind == "limit":
        layer.register_forward_pre_hook(limit)
    elif kind == "lambda":
        layer.register_forward_pre_hook(lambda module, _: module.weight.data.mul_(0.5))
    else:
        layer.register_forward_hook(Keeper().clip if kind == "clip" else watch)
    report = fire_(nn.Sequential(layer, nn.ReLU(), nn.Linear(D, 2)))
    assert ("0.weight" in report.kept) is is_kept
    if is_kept:
        assert re.search(r"writes to the weight \(test_source\.py:\d+\)", report.kept["0.weight"].reason)


class Copied(nn.Linear):
    """It writes to a copy, and moves its weight where the input is."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data.contiguous().type_as(x)
        self.weight.requires_grad_(True)
        copied = self.weight.detach().clone()
        copied.mul_(2)
        copied[0] = 0
        copied += 1
        self.size = copied.norm()
        return super().forward(x)


class Normed(nn.Linear):
    """The input is changed, not the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.layer_norm(x, x.shape[-1:]))


class Cast(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias).relu()


class Padded(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(D, D, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias, self.stride)


class Dotted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight) + self.bias


@pytest.mark.parametrize("kind", [Copied, Normed, Cast, Padded, Dotted])
def test_a_layer_that_takes_its_weight_as_it_is_stays_one_matrix(kind: Callable[..., nn.Module]) -> None:
    layer = kind() if kind is Padded else kind(D, D)
    assert resolve(layer, strict=True)[0].action == "project"


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class NormCell(nn.LSTMCell):
    def forward(self, x: Tensor, hx: Any = None) -> Any:
        return super().forward(F.layer_norm(x, x.shape[-1:]), hx)


class OwnGRU(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class ByHand(nn.LSTMCell):
    """Gates in another order than torch's, read by its own code."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        i, f, o, g = (F.linear(x, self.weight_ih, self.bias_ih)).chunk(4, 1)
        return o.sigmoid() * (i.sigmoid() * g.tanh() + f.sigmoid())


@pytest.mark.parametrize(
    ("layer", "name", "parts"),
    [
        (lambda: SelfAttention(D, 2), "in_proj_weight", "qkv"),
        (lambda: NormCell(D, D), "weight_hh", "ifgo"),
        (lambda: OwnGRU(D, D), "weight_ih_l0", "rzn"),
    ],
)
def test_a_subclass_that_calls_torchs_own_pass_is_cut_as_torch_does(layer, name, parts):
    torch.manual_seed(0)
    model = layer()
    labels = [entry.block for entry in resolve(model, strict=True) if entry.name == name]
    assert labels == [*parts]
    fire_(model, solver="exact")
    check_parts(getattr(model, name), [slice(i * D, (i + 1) * D) for i in range(len(parts))])


@pytest.mark.filterwarnings("ignore")
def test_a_cell_with_a_forward_pass_of_its_own_is_not_taken_for_torchs():
    model = ByHand(D, D)
    report = fire_(model, solver="exact")
    assert "weight_ih" in report.kept or not check_parts(model.weight_ih, [slice(i * D, i * D + D) for i in range(4)])
    assert not any(row.name == "weight_ih" for row in report)


# -------------------------------------------------------------------------------------------------------- the example


def test_the_number_of_heads_may_stand_in_a_config_of_each_layer():
    class Attention(nn.Module):
        def __init__(self, heads: int) -> None:
            super().__init__()
            self.config = SimpleNamespace(heads=heads)
            self.qkv, self.proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            b, t, _ = x.shape
            q, k, v = self.qkv(x).view(b, t, self.config.heads, 3, -1).permute(3, 0, 2, 1, 4)
            return self.proj(attend(q, k, v).transpose(1, 2).reshape(b, t, -1))

    torch.manual_seed(0)
    model = nn.ModuleList([Attention(2), Attention(4), Attention(2)])
    fire_(model, solver="exact", strict=True)
    for layer in model:
        rows = torch.arange(3 * D).view(layer.config.heads, 3, -1)
        check_parts(layer.qkv.weight, [rows[:, i].flatten().tolist() for i in range(3)])  # type: ignore[misc]


@pytest.mark.parametrize("examples", [1, 3, 64, 512])
@pytest.mark.parametrize("closed", [[], [0, 1], [3, 17]])
def test_units_that_never_open_are_parts_of_their_matrix(examples: int, closed: list[int]) -> None:
    class Highway(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 48)

        def forward(self, x: Tensor) -> Tensor:
            a, t = self.layer(x).chunk(2, -1)
            return t.sigmoid() * a.relu() + (1 - t.sigmoid()) * x

    torch.manual_seed(0)
    model = Highway()
    with torch.no_grad():
        model.layer.bias[closed] = -100.0
    fire_(model, solver="exact", example=torch.randn(examples, 24))
    check_parts(model.layer.weight, [slice(24), slice(24, 48)])


def test_a_weight_that_the_pass_multiplies_with_nothing_is_in_no_matrix():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.looked_up, self.idle = nn.Linear(D, D), nn.Linear(D, 9), nn.Linear(7, 7)
            self.experts = nn.ModuleList([nn.Linear(D, D) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            return self.experts[1](self.used(x)) + self.looked_up.weight[3]

    with (
        pytest.warns(UserWarning, match="met no product of matrices"),
        pytest.warns(UserWarning, match="something else with the weight than a product"),
    ):
        report = fire_(Table(), example=TOKENS)
    assert "met no product" in report.kept["idle.weight"].reason
    assert "something else with the weight than a product" in report.kept["looked_up.weight"].reason
    assert {row.name for row in report} == {"used.weight", *(f"experts.{i}.weight" for i in range(3))}


def test_one_reader_serves_all():
    model = nn.Sequential(nn.Embedding(9, D), Layer(2 * D, body=gate_of_silu))
    cuts = [entry.rows for entry in resolve(model) if entry.name == "1.mix.weight"]
    assert cuts == [m.rows for m in matrices(model) if m.name == "1.mix.weight"] == [(0, D), (D, 2 * D)]
    (group,) = [g for g in muon_groups(model).muon if any(p is model[1].mix.weight for p in g["params"])]
    assert [cut[1] for cut in group["cuts"]] == cuts


def test_partial_functions_and_nested_calls_are_followed():
    def apply(layer: nn.Module, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        return layer(x).chunk(parts, -1)

    cut = functools.partial(apply, parts=2)

    def body(s: Any, x: Tensor) -> Tensor:
        first, second = cut(s.mix, x)
        return s.out(first.tanh() * second)

    model = Layer(2 * D, body=body)
    assert [entry.rows for entry in resolve(model) if entry.name == "mix.weight"] == [(0, D), (D, 2 * D)]
