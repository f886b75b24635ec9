"""Ways on which a layer's output reaches the place where it is cut, and ways on which a layer is reached: in each the
parts are matrices of their own, or the weight is kept and named; and what only looks like a cut is one matrix."""

import copy
import functools
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
from einops import pack, unpack
from einops.layers.torch import Rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import SplitMuon, fire_, matrices, muon_groups, resolve
from fire_core.weights import source

D = 8


pytestmark = pytest.mark.filterwarnings("ignore:.*looks fused")


@pytest.fixture(autouse=True)
def _errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STRICT", True)


class Gated(nn.Module):
    """Layers `first`, `mix` with twice as many rows, and `last`; `body` is the forward pass."""

    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.mix, self.last = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, 4)
        self.blocks = nn.ModuleList([self.mix])
        self.unflatten = nn.Unflatten(-1, (2, D))
        self.register_buffer("even_rows", torch.arange(0, 2 * D, 2), persistent=False)
        self.register_buffer("odd_rows", torch.arange(1, 2 * D, 2), persistent=False)
        self.register_buffer("order", torch.randperm(2 * D), persistent=False)
        self.body, self.kind = body, "relu"

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)

    def gate(self, h: Tensor) -> Tensor:
        a, b = h.chunk(2, -1)
        return self.last(a * torch.sigmoid(b))


CUT: dict[str, Callable[[Any, Tensor], Any]] = {}
WHOLE: dict[str, Callable[[Any, Tensor], Any]] = {}


def cut(body: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
    CUT[body.__name__] = body
    return body


def whole(body: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
    WHOLE[body.__name__] = body
    return body


# ------------------------------------------------------------------------------------------- how a layer is reached
@cut
def by_an_f_string(s: Any, x: Tensor) -> Any:
    for name in ("ix",):
        x = getattr(s, f"m{name}")(x)
    return s.gate(x)


@cut
def by_a_formatted_name(s: Any, x: Tensor) -> Any:
    return s.gate(getattr(s, "{}ix".format("m"))(x))


@cut
def by_get_submodule(s: Any, x: Tensor) -> Any:
    return s.gate(s.get_submodule("mix")(x))


@cut
def among_the_children(s: Any, x: Tensor) -> Any:
    layers = list(s.children())
    return s.gate(layers[1](layers[0](x)))


@cut
def by_attrgetter(s: Any, x: Tensor) -> Any:
    return s.gate(operator.attrgetter("mix")(s)(x))


@cut
def in_a_filter(s: Any, x: Tensor) -> Any:
    for layer in filter(lambda layer: layer.out_features > D, [s.first, *s.blocks]):
        x = layer(x)
    return s.gate(x)


@cut
def in_a_chain(s: Any, x: Tensor) -> Any:
    for layer in itertools.chain([s.first], s.blocks):
        x = layer(x)
    return s.gate(x)


@cut
def in_a_reduction(s: Any, x: Tensor) -> Any:
    return s.gate(functools.reduce(lambda value, layer: layer(value), [s.first, s.mix], x))


@cut
def by_a_partial_function(s: Any, x: Tensor) -> Any:
    return s.gate(functools.partial(F.linear, weight=s.mix.weight)(x))


@cut
def by_its_named_parameter(s: Any, x: Tensor) -> Any:
    a, b = (F.linear(x, part) for part in dict(s.named_parameters())["mix.weight"].chunk(2))
    return s.last(a * b.sigmoid())


@cut
def counted_from_one(s: Any, x: Tensor) -> Any:
    for number, layer in enumerate([s.first, s.mix], start=1):
        x = layer(x)
        if number == 2:
            x = s.gate(x)
    return x


# ------------------------------------------------------------------------------------------------ statements around it
@cut
def unpacked_by_a_case(s: Any, x: Tensor) -> Any:
    match s.mix(x).chunk(2, -1):
        case (a, b):
            x = a * b.sigmoid()
    return s.last(x)


@cut
def of_each_sample(s: Any, x: Tensor) -> Any:
    return torch.stack([s.gate(sample) for sample in s.mix(x)])


@cut
def of_a_list_of_samples(s: Any, x: Tensor) -> Any:
    return s.gate(torch.stack([s.mix(sample) for sample in x.unbind(0)]))


@cut
def of_a_generator(s: Any, x: Tensor) -> Any:
    def halves(h: Tensor) -> Any:
        for half in h.chunk(2, -1):  # noqa: UP028
            yield half

    a, b = halves(s.mix(x))
    return s.last(a * b.sigmoid())


@cut
def in_an_inner_function_behind_a_branch(s: Any, x: Tensor) -> Any:
    h = x

    def gate() -> Tensor:
        return s.gate(h)

    if x.sum() > 1e9:
        x = x + 1
    h = s.mix(x)
    return gate()


class Given:
    """A context manager that gives what it holds."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __enter__(self) -> Tensor:
        return self.value

    def __exit__(self, *_: object) -> None:
        return None


@cut
def from_a_context_manager(s: Any, x: Tensor) -> Any:
    with Given(s.mix(x)) as h:
        return s.gate(h)


@cut
def from_a_mapping(s: Any, x: Tensor) -> Any:
    values = OrderedDict()
    values["input"] = x
    values.update({"hidden": s.mix(x)})
    return s.gate(values["hidden"])


@cut
def of_absolute_values(s: Any, x: Tensor) -> Any:
    return s.gate(abs(s.mix(x)))


@cut
def behind_a_try(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    try:
        int("2")
    except ValueError:
        return h.mean()
    else:
        return s.gate(h)


@cut
def in_a_handler(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    try:
        h = h.no_such_method()
    except AttributeError:
        a, b = h.chunk(2, -1)
        h = a * b.sigmoid()
    return s.last(h)


@cut
def in_a_case(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    match len(s.blocks):
        case 1:
            return s.gate(h)
        case _:
            return h


@cut
def after_a_while(s: Any, x: Tensor) -> Any:
    h, turns = s.mix(x), 0
    while turns < 1:
        turns += 1
    else:
        h = s.gate(h)
    return h


# ------------------------------------------------------------------------------------------ between layer and its cut
@cut
def over_a_sum_of_positions(s: Any, x: Tensor) -> Any:
    return s.gate(s.mix(x).sum(-2))


@cut
def over_a_maximum(s: Any, x: Tensor) -> Any:
    return s.gate(s.mix(x).max(-2).values)


@cut
def over_a_sort_of_positions(s: Any, x: Tensor) -> Any:
    values, _ = s.mix(x).sort(-2)
    return s.gate(values)


@cut
def over_a_transposition(s: Any, x: Tensor) -> Any:
    a, b = s.mix(x).mT.chunk(2, dim=-2)
    return s.last((a * b.sigmoid()).mT)


@cut
def over_an_operation_that_is_not_known(s: Any, x: Tensor) -> Any:
    return s.gate(torch.flipud(s.mix(x)))


class Halves:
    """A class whose constructor cuts, as that of a diagonal Gaussian."""

    def __init__(self, h: Tensor) -> None:
        self.mean, self.scale = torch.chunk(h, 2, dim=-1)

    @property
    def scaled(self) -> Tensor:
        return self.mean * self.scale.exp()


@cut
def in_a_constructor(s: Any, x: Tensor) -> Any:
    return s.last(Halves(s.mix(x)).scaled)


class GateFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        a, b = h.chunk(2, -1)
        ctx.save_for_backward(a, b)
        return a * b.sigmoid()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        gate = b.sigmoid()
        return torch.cat([slopes[0] * gate, slopes[0] * a * gate * (1 - gate)], -1)


@cut
def in_an_autograd_function(s: Any, x: Tensor) -> Any:
    return s.last(GateFunction.apply(s.mix(x)))


# --------------------------------------------------------------------------------------------------------- one matrix
@whole
def two_halves_of_the_batch(s: Any, x: Tensor) -> Any:
    a, b = s.mix(x).chunk(2)
    return a * b.sigmoid()


@whole
def a_switch_that_is_off(s: Any, x: Tensor) -> Any:
    if s.kind in ("swiglu", "geglu") or not s.kind or any([getattr(s, "is_gated", False)]):
        return s.gate(s.mix(x))
    return s.mix(x)


@whole
def handlers_that_do_not_cut(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    try:
        h = h.relu()
    except RuntimeError:
        h = h.float().relu()
    finally:
        x = x + 1
    return h


@whole
def a_case_that_does_not_fit(s: Any, x: Tensor) -> Any:
    match len(s.blocks):
        case 2:
            return s.gate(s.mix(x))
        case _:
            return s.mix(x)


# ------------------------------------------------------------------------------------- einops and torch's view layers
@cut
def by_the_layer_rearrange(s: Any, x: Tensor) -> Any:
    parts = Rearrange("b n (two d) -> two b n d", two=2)(s.mix(x))
    return s.last(parts[0] * parts[1].sigmoid())


@cut
def by_a_sequential_with_rearrange(s: Any, x: Tensor) -> Any:
    a, b = nn.Sequential(s.mix, Rearrange("b n (two d) -> two b n d", two=2))(x)
    return s.last(a * b.sigmoid())


@cut
def packed_before(s: Any, x: Tensor) -> Any:
    packed, lengths = pack([s.mix(x)], "* d")
    a, b = packed.chunk(2, -1)
    (joined,) = unpack(a * b.sigmoid(), lengths, "* d")
    return s.last(joined)


@cut
def packed_after_in_a_lambda(s: Any, x: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    (a, lengths), (b, _) = map(lambda part: pack([part], "* d"), (a, b))  # noqa: C417
    joined, *_ = unpack(a * b.sigmoid(), lengths, "* d")
    return s.last(joined)


@cut
def by_the_layer_unflatten(s: Any, x: Tensor) -> Any:
    parts = nn.Unflatten(-1, (2, D))(s.mix(x))
    return s.last(parts[..., 0, :] * parts[..., 1, :].sigmoid())


@cut
def by_strides(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    a, b = (h.as_strided((*h.shape[:-1], D), (*h.stride()[:-1], 1), start) for start in (0, D))
    return s.last(a * b.sigmoid())


@cut
def by_a_layer_that_the_model_holds(s: Any, x: Tensor) -> Any:
    parts = s.unflatten(s.mix(x))
    return s.last(parts[:, :, 0] * parts[:, :, 1].sigmoid())


@cut
def at_an_axis_counted_from_the_front(s: Any, x: Tensor) -> Any:
    parts = s.mix(x).view(*x.shape[:-1], 2, D)
    return s.last(parts[:, :, 0] * parts[:, :, 1].sigmoid())


@cut
def by_einsum_in_alphabetical_order(s: Any, x: Tensor) -> Any:
    a, b = torch.einsum("zyx", s.mix(x)).chunk(2, 0)  # without an arrow the last axis, x, comes first
    return s.last((a * b.sigmoid()).permute(2, 1, 0))


@cut
def by_einops_einsum(s: Any, x: Tensor) -> Any:
    a, b = einops.einsum(s.mix(x), "b n d -> b d n").chunk(2, 1)
    return s.last((a * b.sigmoid()).mT)


@cut
def by_lists_of_rows(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    return s.last(h[..., [*range(D)]] * h[..., [*range(D, 2 * D)]].sigmoid())


@whole
def in_an_order_that_a_buffer_holds(s: Any, x: Tensor) -> Any:
    return s.mix(x)[..., s.order].relu()


@whole
def positions_that_a_buffer_holds(s: Any, x: Tensor) -> Any:
    h = s.mix(x)
    return h[:, s.even_rows[:2]] * h[:, s.odd_rows[:2]].sigmoid()


@whole
def positions_of_a_view_into_heads(s: Any, x: Tensor) -> Any:
    heads = s.mix(x).view(*x.shape[:-1], 2, D)
    return heads[:, 0].mean() + heads[:, 1:].relu().sum()


@whole
def packed_positions(s: Any, x: Tensor) -> Any:
    packed, _ = pack([s.mix(x)], "b * d")
    a, b = packed.chunk(2, 1) if packed.shape[1] % 2 == 0 else (packed, packed)
    return a * b.sigmoid()


@whole
def turned_by_einsum(s: Any, x: Tensor) -> Any:
    h = torch.einsum("bnd->ndb", s.mix(x))
    a, b = h.chunk(2, 0)
    return a * b.sigmoid()


@whole
def halves_of_a_mean_over_features(s: Any, x: Tensor) -> Any:
    a, b = s.mix(x).mean(-1).chunk(2, -1)
    return a * b.sigmoid()


def blocks_of(model: nn.Module, name: str) -> list[tuple[str, Any]]:
    return [(entry.role, entry.rows) for entry in matrices(model) if entry.name == name]


@pytest.mark.parametrize("name", CUT)
def test_each_part_of_a_layer_that_is_cut_is_an_isometry_or_the_weight_is_named(name: str) -> None:
    torch.manual_seed(0)
    model = Gated(CUT[name])
    model(torch.randn(2, 5, D))  # the pass itself runs
    report = fire_(model, solver="exact")
    parts = [row for row in report.rows if row.name.startswith("mix.weight")]
    if not parts:
        assert "looks fused" in report.kept["mix.weight"].reason
        return
    assert [row.shape for row in parts] == [(D, D), (D, D)]
    for half in model.mix.weight.detach().double().chunk(2):
        assert torch.allclose(torch.linalg.svdvals(half), torch.ones(D, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_cut_along_its_features_is_one_matrix(name: str) -> None:
    model = Gated(WHOLE[name])
    model(torch.randn(2, 6, D))
    assert [rows for _, rows in blocks_of(model, "mix.weight")] == [None]


# ------------------------------------------------------------------------------------------------------- whole networks
@pytest.mark.parametrize("axis", ["last", "third"])
def test_rows_that_two_buffers_name_are_a_matrix_each(axis: str) -> None:
    def gate(s: Any, x: Tensor) -> Any:
        h = s.mix(x)
        a, b = (
            (h[..., s.even_rows], h[..., s.odd_rows]) if axis == "last" else (h[:, :, s.even_rows], h[:, :, s.odd_rows])
        )
        return s.last(a * b.sigmoid())

    model = Gated(gate)
    fire_(model, solver="exact")
    weight = model.mix.weight.detach().double()
    for rows in (weight[::2], weight[1::2]):
        assert torch.allclose(torch.linalg.svdvals(rows), torch.ones(D, dtype=torch.float64), atol=1e-5)


class Joined(nn.Module):
    """Outputs of two layers, d and 2 d features, are joined and cut into three; `divide` cuts."""

    def __init__(self, divide: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.mix, self.last = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, 4)
        self.divide = divide

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.divide(torch.cat([self.first(x), self.mix(x)], -1))
        return self.last(F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(
    "divide",
    [
        lambda h: h.chunk(3, -1),
        lambda h: h.split([D, D, D], dim=-1),
        lambda h: h.relu().split(D, -1),
        lambda h: (h[..., :D], h[..., D : 2 * D], h[..., -D:]),
        lambda h: (h.narrow(-1, 0, D), h.narrow(-1, D, D), h.narrow(-1, start=2 * D, length=D)),
        lambda h: (h.narrow(-1, 0, D), h.narrow(-1, D, D), h.narrow(-1, -D, D)),
    ],
)
def test_of_joined_outputs_only_the_one_that_is_cut_is_several(divide: Callable[[Tensor], Any]) -> None:
    model = Joined(divide)
    model(torch.randn(2, 5, D))
    assert [rows for _, rows in blocks_of(model, "mix.weight")] == [(0, D), (D, 2 * D)]
    assert [rows for _, rows in blocks_of(model, "first.weight")] == [None]


@pytest.mark.parametrize(
    "divide",
    [
        lambda h: (h[..., :D], h[..., D:].mean(-1, keepdim=True).expand(-1, -1, D), h[..., :D]),
        lambda h: (h[:, :2, :D], h[:, 2:4, :D], h[:, 2:4, :D]),
        lambda h: tuple(h.split([D, 2 * D], -1)[0] for _ in range(3)),
    ],
)
def test_joined_outputs_that_are_cut_between_them_are_one_matrix_each(divide: Callable[[Tensor], Any]) -> None:
    model = Joined(divide)
    model(torch.randn(2, 5, D))
    for name in ("first", "mix"):
        assert [rows for _, rows in blocks_of(model, f"{name}.weight")] == [None]


class Upsampling(nn.Module):
    """A transposed convolution, stored (inputs, outputs, ...), whose outputs are a value and its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, D, 1)
        self.up, self.last = nn.ConvTranspose2d(D, 2 * D, 2, stride=2), nn.Conv2d(D, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(self.first(x)).chunk(2, 1)
        return self.last(a * b.sigmoid())


class Halving(nn.Module):
    """The same network with a layer for each half."""

    def __init__(self, other: Upsampling) -> None:
        super().__init__()
        self.first = copy.deepcopy(other.first)
        self.upper, self.lower = (nn.ConvTranspose2d(D, D, 2, stride=2) for _ in range(2))
        self.last = copy.deepcopy(other.last)
        with torch.no_grad():
            for layer, rows in ((self.upper, slice(0, D)), (self.lower, slice(D, None))):
                layer.weight.copy_(other.up.weight[:, rows])
                layer.bias.copy_(other.up.bias[rows])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.upper(x) * self.lower(x).sigmoid())


@pytest.mark.parametrize("options", [{}, {"example": torch.randn(1, 3, 3, 3)}, {"blocks": {"up.weight": (D, D)}}])
def test_halves_of_a_transposed_convolution_are_as_two_layers(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Upsampling()
    apart = Halving(model)
    fire_(model, solver="exact", **options)
    fire_(apart, solver="exact")
    assert torch.equal(model.up.weight, torch.cat([apart.upper.weight, apart.lower.weight], 1))


def test_muon_trains_halves_of_a_transposed_convolution_as_two_layers() -> None:
    torch.manual_seed(0)
    model = Upsampling()
    apart, x = Halving(model), torch.randn(2, 3, 3, 3)
    for network in (model, apart):
        muon = SplitMuon(muon_groups(network)[0], lr=0.02)
        for _ in range(2):
            network.zero_grad()
            network(x).square().mean().backward()
            muon.step()
    assert torch.allclose(model.up.weight, torch.cat([apart.upper.weight, apart.lower.weight], 1), atol=1e-6)


def test_the_state_of_one_half_of_a_transposed_convolution_is_reset_alone() -> None:
    model = Upsampling()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, 3, 3)).square().mean().backward()
    optimizer.step()
    fire_(model, layout=[entry for entry in resolve(model) if entry.block == "up"], optimizer=optimizer)
    moment = optimizer.state[model.up.weight]["exp_avg_sq"]
    assert not moment[:, :D].any()
    assert moment[:, D:].all()


class Restoring(nn.Module):
    """Channels are filtered by a depthwise convolution before they are cut, as in networks that restore images."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(D, 3 * D, 1)
        self.filter = nn.Conv2d(3 * D, 3 * D, 3, padding=1, groups=3 * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.flatten(2) for part in self.filter(self.qkv(x)).chunk(3, 1))
        return (q @ k.mT).softmax(-1) @ v


class PooledVae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, D, 3), nn.ReLU(), nn.Conv2d(D, 2 * D, 3))
        self.decoder = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).mean((2, 3)).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * log_variance.exp())


class Agent(nn.Module):
    """A policy and a value without `forward`, as agents that are written in one file."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, D), nn.Tanh(), nn.Linear(D, D), nn.Tanh())
        self.policy, self.value = nn.Linear(D, 2 * D), nn.Linear(D, 1)

    def get_value(self, x: Tensor) -> Tensor:
        return self.value(self.body(x))

    def get_action_and_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        mean, log_std = self.policy(h).chunk(2, -1)
        return torch.distributions.Normal(mean, log_std.exp()).sample(), self.value(h)


class Acting(nn.Module):
    """The forward pass returns what another method cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, D), nn.ReLU(), nn.Linear(D, 2 * D))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def act(self, x: Tensor) -> Tensor:
        mean, log_std = self(x).chunk(2, -1)
        return mean + log_std.exp() * torch.randn_like(mean)

    def init_weights(self) -> None:
        self.layers[0].weight.data.mul_(2)


class Conditioned(nn.Module):
    """Shift, scale and gate of all blocks are one layer's output, which the blocks cut."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(D, 3 * D))
        self.first, self.last = nn.Linear(D, D), nn.Linear(D, D)
        self.blocks = nn.ModuleList([Modulated() for _ in range(2)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        modulation = self.condition(t)
        x = self.first(x)
        for block in self.blocks:
            x = block(x, modulation)
        return self.last(x)


class Modulated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        shift, scale, gate = modulation.chunk(3, dim=-1)
        return x + gate * self.layers(x * (1 + scale) + shift)


@pytest.mark.parametrize("example", [None, (torch.randn(2, D), torch.randn(2, D))])
def test_a_block_may_cut_another_layer_s_output(example: Any) -> None:
    torch.manual_seed(0)
    model = Conditioned()
    fire_(model, solver="exact", example=example)
    for part in model.condition[1].weight.detach().double().chunk(3):
        assert torch.allclose(torch.linalg.svdvals(part), torch.ones(D, dtype=torch.float64), atol=1e-5)


class Needy(nn.Module):
    """It does not run alone, so that nothing but its code says how the rows divide."""

    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.to_kv, self.body = nn.Linear(D, 2 * D), body

    def forward(self, x: Tensor, mask: dict[str, Tensor]) -> Tensor:
        return self.body(self.to_kv(x), mask["past"])


@pytest.mark.parametrize(
    "body",
    [
        lambda y, past: y.chunk(2, -1)[0] * past + y.chunk(2, -1)[1],
        lambda y, past: past @ y.chunk(2, dim=-1)[0].mT @ y.chunk(2, dim=-1)[1],
        lambda y, past: (lambda k, v: past @ k.mT @ v)(*y.split([D, D], dim=-1)),
        lambda y, past: (lambda k, v: past @ k.mT @ v)(*y.split(D, -1)),
        lambda y, past: (lambda k, v: past @ k.mT @ v)(*torch.tensor_split(y, 2, dim=-1)),
    ],
)
def test_sizes_that_the_code_states_divide_a_weight_or_it_is_kept(body: Callable[[Tensor, Tensor], Tensor]) -> None:
    entries = [entry for entry in matrices(Needy(body)) if entry.name == "to_kv.weight"]
    stated = [(entry.block, entry.rows) for entry in entries]
    assert stated == [("k", (0, D)), ("v", (D, 2 * D))] or [entry.role for entry in entries] == ["fused"]


def test_sizes_that_the_code_states_are_taken() -> None:
    model = Needy(lambda y, past: (lambda k, v: past @ k.mT @ v)(*y.split([D, D], dim=-1)))
    entries = [entry for entry in matrices(model) if entry.name == "to_kv.weight"]
    assert [(entry.block, entry.role) for entry in entries] == [("k", "k"), ("v", "v")]


def gate_of(y: Tensor, past: Tensor) -> Tensor:
    a, b = y.chunk(2, -1)
    return a * b.sigmoid() * past


def gate_in_a_gate(y: Tensor, past: Tensor) -> Tensor:
    a, b = y.chunk(2, -1)
    return torch.cat([gate_of(a, past)] * 2, -1) * b.tanh()


def rotary(y: Tensor, past: Tensor) -> Tensor:
    q, p, k, r, v = y.split([2, 2, 2, 2, D], -1)
    q, k = torch.cat([q * past, p], -1), torch.cat([k * past, r], -1)
    return (q @ k.mT).softmax(-1) @ v


def two_sizes_at_one_place(y: Tensor, past: Tensor) -> Tensor:
    sums = past
    for sizes in ([4, 12], [12, 4]):
        a, b = y.split(sizes, -1)
        sums = sums + a.mean(-1, keepdim=True) * b.sigmoid().mean(-1, keepdim=True)
    return sums


MOVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "interleaved": lambda y, past: gate_of(y.view(2, 4, D, 2).transpose(-1, -2).flatten(-2), past),
    "regrouped": lambda y, past: gate_of(y.reshape(2, 8, D), past),
    "rolled": lambda y, past: gate_of(y.roll(4, -1), past),
    "merged": lambda y, past: gate_of(y.reshape(y.shape[0], -1), past),
    "shifted": lambda y, past: gate_of(torch.cat([y[:, 1:], y[:, :-1]], -1), past),
    "repeated": lambda y, past: gate_of(y.repeat(1, 1, 2), past),
    "padded": lambda y, past: gate_of(F.pad(y, (0, 2 * D)), past),
    "cut again": gate_in_a_gate,
    "put together": rotary,
    "two sizes": two_sizes_at_one_place,
}


@pytest.mark.parametrize("how", MOVED)
def test_stated_sizes_divide_only_what_the_layer_has_returned(how: str) -> None:
    """Else the parts are other rows than the sizes say, or matrices of several parts."""
    entries = [entry for entry in matrices(Needy(MOVED[how])) if entry.name == "to_kv.weight"]
    assert [(entry.rows, entry.role) for entry in entries] == [(None, "fused")]


class Uneven(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layer, self.sizes = nn.Linear(D, D), sizes

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        a, b = given.split(self.sizes, -1)
        return self.layer(x) * a.mean() + b.sigmoid().mean()


class UnevenBlocks(nn.Module):
    """Blocks of one class cut one layer's output into other sizes each; it does not run alone."""

    def __init__(self) -> None:
        super().__init__()
        self.give, self.blocks = nn.Linear(D, 2 * D), nn.ModuleList([Uneven([4, 12]), Uneven([12, 4])])

    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        given = self.give(cache["past"])
        for block in self.blocks:
            x = block(x, given)
        return x


def test_blocks_that_cut_into_other_sizes_state_none() -> None:
    entries = [entry for entry in matrices(UnevenBlocks()) if entry.name == "give.weight"]
    assert [(entry.rows, entry.role) for entry in entries] == [(None, "fused")]


class Decoder(nn.Module):
    """A block gets the memory as its second argument, and divides its positions."""

    def __init__(self, divide: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.memory, self.block = nn.Linear(D, 2 * D), DecoderBlock(divide)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        return self.block(x, self.memory(m))


class DecoderBlock(nn.Module):
    def __init__(self, divide: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.q, self.divide = nn.Linear(D, 2 * D), divide

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        near, far = self.divide(memory)
        return (self.q(x) @ near.mT) @ far.sigmoid()


@pytest.mark.parametrize(
    "divide", [lambda m: m.chunk(2, 1), lambda m: m.chunk(2, -2), lambda m: m.split([2, 2], 1), lambda m: m.unbind(0)]
)
def test_positions_of_a_memory_are_no_parts_of_its_layer(divide: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    assert blocks_of(Decoder(divide), "memory.weight") == [("dense", None)]


class LinearAttention(nn.Module):
    """Keys meet values before the queries come."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(D, 3 * D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).chunk(3, -1)
        context = torch.einsum("bnd,bne->bde", k.softmax(1), v)
        return torch.einsum("bde,bnd->bne", context, q.softmax(-1))


def test_the_parts_of_a_linear_attention_have_their_names() -> None:
    entries = [entry for entry in matrices(LinearAttention()) if entry.name == "to_qkv.weight"]
    assert [(entry.block, entry.role, entry.rows) for entry in entries] == [
        ("q", "q", (0, D)),
        ("k", "k", (D, 2 * D)),
        ("v", "v", (2 * D, 3 * D)),
    ]


def reshaping_hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    a, b = output.chunk(2, -1)
    return a * b.sigmoid()


def test_an_output_that_a_hook_replaces_is_followed_no_further() -> None:
    model = nn.Sequential(nn.Linear(D, 2 * D), nn.Linear(D, D))
    model[0].register_forward_hook(reshaping_hook)
    assert source.SourceReader(model).use_of(id(model[0].weight)).is_lost


@pytest.mark.parametrize(
    ("network", "name", "count"),
    [
        (Restoring, "qkv.weight", 3),
        (PooledVae, "encoder.2.weight", 2),
        (Agent, "policy.weight", 2),
        (Acting, "layers.2.weight", 2),
    ],
)
def test_networks_whose_cut_is_far_from_the_layer(network: type[nn.Module], name: str, count: int) -> None:
    parts = [entry for entry in matrices(network()) if entry.name == name]
    assert len(parts) == count or [part.role for part in parts] == ["fused"]


def test_each_instance_of_a_class_is_read() -> None:
    networks = nn.ModuleDict({"one": Acting(), "other": Acting()})
    for name in networks:
        (entry,) = (entry for entry in matrices(networks) if entry.name == f"{name}.layers.2.weight")
        assert entry.role == "fused"


class Grey(nn.Module):
    """A convolution with one input channel filters no channel of the layer before it by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.conv, self.last = nn.Linear(D, 64), nn.Conv2d(1, 2 * D, 3, padding=1), nn.Conv2d(D, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.conv(self.fc(x).view(-1, 1, 8, 8)).chunk(2, 1)
        return self.last(mean * scale.sigmoid())


def test_a_convolution_of_one_channel_is_a_layer_like_any_other() -> None:
    read = {entry.name: entry for entry in matrices(Grey()) if entry.name == "fc.weight"}
    assert read["fc.weight"].rows is None
    assert read["fc.weight"].role != "fused"
    assert len(blocks_of(Grey(), "conv.weight")) == 2


class Odd:
    """An object that a module holds and that raises whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __call__(self, x: Tensor) -> Tensor:
        return x


def test_an_object_that_raises_does_not_stop_the_reading() -> None:
    model = Gated(lambda s, x: s.gate(s.odd(s.mix(x))))
    model.odd = Odd()
    assert blocks_of(model, "mix.weight")


def test_what_was_not_read_to_its_end_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_NODES", 12)
    model = Gated(lambda s, x: s.gate(s.mix(s.first(x))))
    assert len(blocks_of(model, "mix.weight")) == 2


def test_what_another_method_writes_to_a_weight_is_no_part_of_the_forward_pass() -> None:
    assert "layers.0.weight" in {row.name for row in fire_(Acting()).rows}


def test_the_outputs_of_methods_are_heads_where_there_is_no_forward_pass() -> None:
    assert {role for role, _ in blocks_of(Agent(), "value.weight")} == {"head"}


class Called(nn.Module):
    """A hidden layer has the name `fc`, and the output layer has none that says what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.q = nn.Conv2d(4, D, 4, 2), nn.Linear(D * 9, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.q(F.relu(self.fc(F.relu(self.conv(x)).flatten(1))))


def test_a_hidden_layer_called_fc_is_no_head() -> None:
    model = Called()
    assert {entry.name: entry.role for entry in matrices(model)} | {"q.weight": "head", "fc.weight": "mlp"} == {
        entry.name: entry.role for entry in matrices(model)
    }
    muon, _ = muon_groups(model)
    assert [p for group in muon for p in group["params"]] == [model.fc.weight]


class Reshaped(nn.Module):
    """A raw parameter whose rows are no rows of the matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, 2 * D))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w.view(2, D, D)
        return F.silu(F.linear(x, gate)) * F.linear(x, up)


def test_a_view_with_rows_of_another_length_is_kept() -> None:
    with pytest.warns(match="nothing was projected"):
        report = fire_(Reshaped(), example=torch.randn(5, D))
    assert "whose rows are not its own" in report.kept["w"].reason
