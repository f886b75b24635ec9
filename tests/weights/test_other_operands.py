"""Parts of a layer's output that meet the same operation with something else each: `g * x + r * y`.

Each of `PARTS` is a fused layer: its parts are matrices of their own. Each of `WHOLE` takes the output apart and puts
it together again, or takes it apart along another axis: one matrix. All are read with and without an example.
"""

import collections
import dataclasses
from collections.abc import Callable
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
Body = Callable[[Any, Tensor, Tensor], Any]
PARTS: dict[str, tuple[Body, list[list[int]], dict[str, Any]]] = {}  # forward pass, rows of each part, other layers
WHOLE: dict[str, tuple[Body, dict[str, Any]]] = {}


@pytest.fixture(autouse=True)
def _errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STRICT", True)


class Block(nn.Module):
    """A layer `mix`, the fused one, a layer `out`, and a forward pass of two inputs."""

    def __init__(self, body: Body, rows: int, inputs: int = D, **layers: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body, self.mix, self.out = body, nn.Linear(inputs, rows), nn.Linear(D, D)
        for name, layer in layers.items():
            self.add_module(name, layer())

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.body(self, x, y)


class Net(nn.Module):
    """The block between other layers."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(D, D) for _ in range(3))
        self.block = block

    def forward(self, x: Tensor) -> Any:
        result = self.block(self.first(x), self.second(x))
        return self.last(result) if isinstance(result, Tensor) else result


def parts(*heights: int, every: int = 0, **layers: Any) -> Callable[[Body], Body]:
    """A forward pass whose parts have these heights; with `every`, the parts take turns row by row."""
    ends = torch.tensor(heights).cumsum(0).tolist()
    rows = [[*range(end - height, end)] for end, height in zip(ends, heights, strict=True)]
    if every:
        rows = [[*range(k, sum(heights), every)] for k in range(every)]

    def note(body: Body) -> Body:
        PARTS[body.__name__] = (body, rows, layers)
        return body

    return note


def whole(**layers: Any) -> Callable[[Body], Body]:
    """A forward pass whose layer is one matrix."""

    def note(body: Body) -> Body:
        WHOLE[body.__name__] = (body, layers)
        return body

    return note


# --------------------------------------------------------------------------------------------------- several matrices
@parts(D, D, inputs=2 * D)
def gate(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = torch.sigmoid(s.mix(torch.cat([a, b], -1))).chunk(2, -1)
    return x * a + y * b


@parts(D, D, inputs=2 * D)
def gate_after(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(torch.cat([a, b], -1)).chunk(2, -1)
    return torch.sigmoid(x) * a + torch.sigmoid(y) * b


def weigh(gate: Tensor, x: Tensor) -> Tensor:
    return gate * x


@parts(D, D)
def gate_helper(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return weigh(x, a) + weigh(y, b)


@parts(D, D)
def gate_loop(s: Any, a: Tensor, b: Tensor) -> Any:
    r = 0
    for g, t in zip(s.mix(a).sigmoid().chunk(2, -1), (a, b), strict=False):
        r = r + g * t
    return r


@parts(D, D)
def gate_sum(s: Any, a: Tensor, b: Tensor) -> Any:
    return sum(g * t for g, t in zip(s.mix(a).sigmoid().chunk(2, -1), [a, b], strict=False))


@parts(D, D)
def gate_slices(s: Any, a: Tensor, b: Tensor) -> Any:
    g = s.mix(a).sigmoid()
    return g[..., :D] * a + g[..., D:] * b


@parts(D, D)
def gate_view(s: Any, a: Tensor, b: Tensor) -> Any:
    g = s.mix(a).sigmoid().view(*a.shape[:-1], 2, D)
    return g[..., 0, :] * a + g[..., 1, :] * b


@parts(D, D)
def gate_unbind(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).unflatten(-1, (2, D)).softmax(-2).unbind(-2)
    return x * a + y * b


@parts(D, D)
def gate_addcmul(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).sigmoid().chunk(2, -1)
    return torch.addcmul(x * a, y, b)


@parts(D, D)
def gate_inplace(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).sigmoid().chunk(2, -1)
    r = x * a
    r += y.mul(b)
    return r


@parts(D, D)
def gate_einsum(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)

    def dot(p: Tensor, q: Tensor) -> Tensor:
        return torch.einsum("btd,btd->bt", p, q)

    return (dot(x, a) + dot(y, b))[..., None] * a


@parts(D, D)
def gate_stack(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).sigmoid().chunk(2, -1)
    return torch.stack([x * a, y * b]).sum(0)


@parts(D, D)
def gate_two_outs(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).sigmoid().chunk(2, -1)
    return s.out(x * a) + s.out(y * b)


@parts(D, D)
def gate_two_heads_tuple(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).sigmoid().chunk(2, -1)
    return x * a, y * b


@parts(D, D)
def shifts(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return s.out(F.relu(x + a)) + s.out(F.relu(y + b))


@parts(D, D)
def gate_where(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return torch.where(b > 0, x, y)


@parts(D, D)
def gate_lerp(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return torch.lerp(x, y, b.sigmoid())


@parts(D, D)
def lerp_by_hand(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    t = b.sigmoid()
    return x * t + y * (1 - t)


@parts(D, D, D)
def gru_like(s: Any, a: Tensor, b: Tensor) -> Any:
    r, z, n = s.mix(a).chunk(3, -1)
    z = torch.sigmoid(z)
    return z * b + (1 - z) * torch.tanh(n + torch.sigmoid(r) * b)


@parts(D, D)
def min_gru(s: Any, a: Tensor, b: Tensor) -> Any:
    z, n = s.mix(a).chunk(2, -1)
    z = z.sigmoid()
    return (1 - z) * b + z * n


@parts(D, D)
def min_lstm(s: Any, a: Tensor, b: Tensor) -> Any:
    f, i = s.mix(a).sigmoid().chunk(2, -1)
    return f * b + i * a


@parts(D, D)
def min_lstm_norm(s: Any, a: Tensor, b: Tensor) -> Any:
    f, i = s.mix(a).sigmoid().chunk(2, -1)
    n = f + i
    return f / n * b + i / n * a


@parts(D, D, D)
def sru(s: Any, x: Tensor, c: Tensor) -> Any:
    u, f, r = s.mix(x).chunk(3, -1)
    f, r = f.sigmoid(), r.sigmoid()
    c = f * c + (1 - f) * u
    return r * c.tanh() + (1 - r) * x


@parts(D, D, D)
def qrnn(s: Any, x: Tensor, h: Tensor) -> Any:
    z, f, o = s.mix(x).chunk(3, -1)
    h = f.sigmoid() * h + (1 - f.sigmoid()) * z.tanh()
    return o.sigmoid() * h


@parts(D, D)
def highway(s: Any, x: Tensor, c: Tensor) -> Any:
    h, t = s.mix(x).chunk(2, -1)
    t = t.sigmoid()
    return h.relu() * t + x * (1 - t)


@parts(D, D)
def highway_carry(s: Any, x: Tensor, c: Tensor) -> Any:
    t, k = s.mix(x).sigmoid().chunk(2, -1)
    return s.out(x) * t + x * k


@parts(D, D)
def film(s: Any, x: Tensor, c: Tensor) -> Any:
    scale, shift = s.mix(c).chunk(2, -1)
    return x * (1 + scale) + shift


@parts(D, D)
def film2(s: Any, x: Tensor, c: Tensor) -> Any:
    gamma, beta = s.mix(c).chunk(2, -1)
    return torch.addcmul(beta, gamma, x)


@parts(D, D)
def se_two(s: Any, x: Tensor, c: Tensor) -> Any:
    p, q = s.mix(x.mean(1, keepdim=True)).sigmoid().chunk(2, -1)
    return x * p + c * q


@parts(D, D, D, D, D, D, mlp=lambda: nn.Linear(D, D), norm=lambda: nn.LayerNorm(D, elementwise_affine=False))
def adaln_six(s: Any, x: Tensor, c: Tensor) -> Any:
    s1, c1, g1, s2, c2, g2 = s.mix(F.silu(c)).chunk(6, dim=-1)
    x = x + g1 * s.out(s.norm(x) * (1 + c1) + s1)
    return x + g2 * s.mlp(s.norm(x) * (1 + c2) + s2)


@parts(D, D, norm=lambda: nn.LayerNorm(D, elementwise_affine=False), mlp=lambda: nn.Linear(D, D))
def two_gates(s: Any, x: Tensor, c: Tensor) -> Any:
    g1, g2 = s.mix(c).chunk(2, -1)
    x = x + g1 * s.out(s.norm(x))
    return x + g2 * s.mlp(s.norm(x))


@parts(D, D, norm=lambda: nn.LayerNorm(D, elementwise_affine=False))
def two_scales(s: Any, x: Tensor, c: Tensor) -> Any:
    g1, g2 = s.mix(c).chunk(2, -1)
    return s.out(s.norm(x) * g1) + s.out(s.norm(c) * g2)


@parts(D, D, D)
def mdn(s: Any, x: Tensor, c: Tensor) -> Any:
    pi, mu, sigma = s.mix(x).chunk(3, -1)
    return pi.softmax(-1), mu, sigma.exp()


@parts(D, D)
def gaussian(s: Any, x: Tensor, c: Tensor) -> Any:
    mu, log_std = s.mix(x).chunk(2, -1)
    return torch.distributions.Normal(mu, log_std.exp())


@parts(D, D)
def beta_policy(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = F.softplus(s.mix(x)).chunk(2, -1)
    return torch.distributions.Beta(a, b)


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Made:
    a: Tensor
    b: Tensor


@parts(D, D)
def own_pair(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return Pair(a, b)


@parts(D, D)
def own_dataclass(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return Made(a, b)


@parts(D, D)
def own_dataclass_kw(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return Made(b=b, a=a)


@parts(D, D)
def stored(s: Any, x: Tensor, c: Tensor) -> Any:
    s.mu, s.logvar = s.mix(x).chunk(2, -1)
    return s.mu + s.logvar


@parts(D, D)
def vae(s: Any, x: Tensor, c: Tensor) -> Any:
    mu, logvar = s.mix(x).chunk(2, -1)
    std = torch.exp(0.5 * logvar)
    return mu + torch.randn_like(std) * std


@parts(D, D)
def vae_dict(s: Any, x: Tensor, c: Tensor) -> Any:
    mu, logvar = s.mix(x).chunk(2, -1)
    return {"mu": mu, "logvar": logvar}


@parts(D, D)
def glu(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return a * F.silu(b)


@parts(D, D)
def attention_gated(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return a.tanh() * b.sigmoid()


@parts(D, D)
def bilinear_pair(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return a * b


@parts(D, D)
def polar(s: Any, x: Tensor, c: Tensor) -> Any:
    mag, phase = s.mix(x).chunk(2, -1)
    return torch.cat([mag.exp() * phase.cos(), mag.exp() * phase.sin()], -1)[..., :D]


@parts(1, D)
def dueling(s: Any, x: Tensor, c: Tensor) -> Any:
    v, adv = s.mix(x).split([1, D], -1)
    return v + adv - adv.mean(-1, keepdim=True)


@parts(1, D)
def actor_critic(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x)
    return y[..., :1], y[..., 1:]


@parts(D, D)
def dfine_gate(s: Any, a: Tensor, b: Tensor) -> Any:
    gates = s.mix(a).sigmoid()
    g1, g2 = gates.chunk(2, dim=-1)
    return F.layer_norm(g1 * a + g2 * b, (D,))


class Sub(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(D, D)

    def forward(s, x, shift, scale):
        return s.l(x * scale + shift)


@parts(D, D, sub=Sub)
def parts_to_a_module(s: Any, x: Tensor, c: Tensor) -> Any:
    shift, scale = s.mix(c).chunk(2, -1)
    return s.sub(x, shift, scale)


class Sub2(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(D, D)

    def forward(s, x, g):
        return s.l(x) * g


@parts(D, D, sub=Sub2)
def same_module_twice(s: Any, x: Tensor, c: Tensor) -> Any:
    g1, g2 = s.mix(c).chunk(2, -1)
    return s.sub(x, g1) + s.sub(c, g2)


@parts(D, D)
def weight_loop(s: Any, a: Tensor, b: Tensor) -> Any:
    return sum(F.linear(t, w) for t, w in zip((a, b), s.mix.weight.chunk(2), strict=False))


@parts(D, D, D, D)
def differential(s: Any, x: Tensor, c: Tensor) -> Any:
    q1, q2, k1, k2 = s.mix(x).chunk(4, -1)

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1)

    return (scores(q1, k1) - 0.5 * scores(q2, k2)) @ c


@parts(D, D, key=lambda: nn.Linear(D, 2 * D))
def differential_q(s: Any, x: Tensor, c: Tensor) -> Any:
    q1, q2 = s.mix(x).chunk(2, -1)
    k1, k2 = s.key(x).chunk(2, -1)

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1)

    return (scores(q1, k1) - 0.5 * scores(q2, k2)) @ c


@parts(D, D)
def gate_dict(s: Any, a: Tensor, b: Tensor) -> Any:
    g = dict(zip("ab", s.mix(a).sigmoid().chunk(2, -1), strict=False))
    return g["a"] * a + g["b"] * b


@parts(D, D)
def gate_then_cat(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).sigmoid().chunk(2, -1)
    return torch.cat([x * a + y * b, a], -1)[..., :D]


@parts(D, D)
def gate_residual(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return a + x * a + y * b


@parts(D, D)
def gate_minus(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return a - x * a - y * b


@parts(D, D)
def gate_nested_fn(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = map(torch.sigmoid, s.mix(a).chunk(2, -1))
    return torch.add(torch.mul(x, a), torch.mul(y, b))


@parts(D, D, D, D)
def four_gates(s: Any, a: Tensor, b: Tensor) -> Any:
    g = s.mix(a).sigmoid().chunk(4, -1)
    return g[0] * a + g[1] * b + g[2] * a.tanh() + g[3] * b.tanh()


@parts(D, D)
def divides(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).exp().chunk(2, -1)
    return a / x + b / y


@parts(D, D)
def same_root(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return x * b[:, :1] + y * b[:, 1:2]


@parts(D, D, every=2)
def gate_interleaved(s: Any, a: Tensor, b: Tensor) -> Any:
    g = s.mix(a).sigmoid()
    return g[..., ::2] * a + g[..., 1::2] * b


@parts(D, D)
def mixture_max(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return torch.maximum(x * a, y * b)


@parts(D, D)
def affine_min_max(s: Any, a: Tensor, b: Tensor) -> Any:
    lo, hi = s.mix(a).chunk(2, -1)
    return torch.clamp(b, lo, hi)


@parts(D, D)
def threshold(s: Any, a: Tensor, b: Tensor) -> Any:
    lo, hi = s.mix(a).chunk(2, -1)
    return torch.where((b > lo) & (b < hi), a, b)


@parts(D, D)
def distances(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return -((x - a) ** 2) - (y - b) ** 2


@parts(D, D)
def losses(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return a + F.mse_loss(x, a) + F.mse_loss(y, b)


@parts(D, D, deep=lambda: nn.Linear(D, D))
def cross_stage(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return s.out(x + s.deep(y).relu())


@parts(D, D)
def gate_of_a_dict_comprehension(s: Any, a: Tensor, b: Tensor) -> Any:
    gates = {name: gate.sigmoid() for name, gate in zip("xy", s.mix(a).chunk(2, -1), strict=True)}
    return gates["x"] * a + gates["y"] * b


@parts(D, D)
def gates_by_computed_names(s: Any, a: Tensor, b: Tensor) -> Any:
    gates = {f"{k}{len(a)}": gate for k, gate in enumerate(s.mix(a).chunk(2, -1))}
    return gates[f"0{len(a)}"] * a + gates[f"1{len(a)}"] * b


@parts(D, D)
def joined_along_positions(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return torch.cat([x * a, y * b], 1)


@parts(D, D)
def attention_to_two_things(s: Any, a: Tensor, b: Tensor) -> Any:
    def attended(q: Tensor, kv: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, kv, kv)

    x, y = s.mix(a).chunk(2, -1)
    return attended(x, a) + attended(y, b)


@parts(D, D)
def gates_that_are_stacked(s: Any, a: Tensor, b: Tensor) -> Any:
    x, y = s.mix(a).chunk(2, -1)
    return torch.stack([x + a, y + b], dim=1).mean(1)


# --------------------------------------------------------------------------------------------------------- one matrix
@whole(deep=lambda: nn.Linear(D, D))
def shuffle_unit(s: Any, x: Tensor, c: Tensor) -> Any:
    both = torch.cat([s.mix(x), c], -1).view(*x.shape[:-1], 2, D).transpose(-1, -2).flatten(-2)
    a, b = both.chunk(2, -1)
    return a + s.deep(b)


@whole()
def heads_written_one_by_one(s: Any, x: Tensor, c: Tensor) -> Any:
    q = s.mix(x).view(*x.shape[:2], 3, 4)
    out = torch.empty_like(q)
    for h in range(3):
        out[:, :, h] = q[:, :, h] * c[:, :, h : h + 1]
    return out.flatten(2)


@whole()
def sums_and_differences(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return torch.cat([(a + b) / 2, (a - b) / 2], -1)


@whole()
def weighted_mean(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return torch.cat([0.7 * a + 0.3 * b] * 2, -1)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


@whole()
def rotary(s: Any, x: Tensor, c: Tensor) -> Any:
    q = s.mix(x)
    return q * c.cos() + rotate_half(q) * c.sin()


@whole()
def rotary_halves(s: Any, x: Tensor, c: Tensor) -> Any:
    x1, x2 = s.mix(x).chunk(2, -1)
    cos, sin = c[..., : D // 2].cos(), c[..., : D // 2].sin()
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


@whole()
def rotary_cos_of_halves(s: Any, x: Tensor, c: Tensor) -> Any:
    x1, x2 = s.mix(x).chunk(2, -1)
    (c1, c2), (s1, s2) = c.cos().chunk(2, -1), c.sin().chunk(2, -1)
    return torch.cat([x1 * c1 - x2 * s1, x2 * c2 + x1 * s2], -1)


@whole()
def rotary_even_odd(s: Any, x: Tensor, c: Tensor) -> Any:
    q = s.mix(x)
    e, o = q[..., ::2], q[..., 1::2]
    cos, sin = c[..., ::2].cos(), c[..., ::2].sin()
    return torch.stack([e * cos - o * sin, e * sin + o * cos], -1).flatten(-2)


@whole()
def rotary_in_place(s: Any, x: Tensor, c: Tensor) -> Any:
    q = s.mix(x)
    out = torch.empty_like(q)
    cos, sin = c[..., ::2].cos(), c[..., 1::2].sin()
    out[..., ::2] = q[..., ::2] * cos - q[..., 1::2] * sin
    out[..., 1::2] = q[..., ::2] * sin + q[..., 1::2] * cos
    return out


@whole()
def rotary_partial(s: Any, x: Tensor, c: Tensor) -> Any:
    q = s.mix(x)
    a, b = q[..., :8], q[..., 8:]
    a = a * c[..., :8].cos() + rotate_half(a) * c[..., :8].sin()
    return torch.cat([a, b], -1)


@whole()
def rotary_axial(s: Any, x: Tensor, c: Tensor) -> Any:
    h, w = s.mix(x).chunk(2, -1)
    ch, cw = c[:, :1, :6], c[:, 1:2, :6]
    h = h * ch.cos() + rotate_half(h) * ch.sin()
    w = w * cw.cos() + rotate_half(w) * cw.sin()
    return torch.cat([h, w], -1)


@whole()
def rotary_axial_loop(s: Any, x: Tensor, c: Tensor) -> Any:
    parts = []
    for i, p in enumerate(s.mix(x).split(4, -1)):
        f = c[:, i : i + 1, :4]
        parts.append(p * f.cos() + rotate_half(p) * f.sin())
    return torch.cat(parts, dim=-1)


@whole()
def rotary_complex(s: Any, x: Tensor, c: Tensor) -> Any:
    q = torch.view_as_complex(s.mix(x).unflatten(-1, (-1, 2)))
    f = torch.polar(torch.ones_like(c[..., :6]), c[..., :6])
    return torch.view_as_real(q * f).flatten(-2)


@whole()
def complex_pair(s: Any, x: Tensor, c: Tensor) -> Any:
    re, im = s.mix(x).chunk(2, -1)
    z = torch.complex(re, im)
    return torch.cat([z.real, z.imag], -1)


@whole()
def complex_product(s: Any, x: Tensor, c: Tensor) -> Any:
    re, im = s.mix(x).chunk(2, -1)
    p, q = c.chunk(2, -1)
    return torch.cat([re * p - im * q, re * q + im * p], -1)


@whole()
def scaled_halves(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    p, q = c.chunk(2, -1)
    return torch.cat([a * p, b * q], -1)


@whole()
def shifted_halves(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    p, q = c.chunk(2, -1)
    return torch.cat([a + p, b + q], -1)


@whole(ps=lambda: nn.PixelShuffle(2))
def pixel_shuffle(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x)[..., None, None].flatten(0, 1)
    y = s.ps(y)
    return y.flatten(1).unflatten(0, x.shape[:2])


@whole()
def pixel_shuffle_by_hand(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x).view(*x.shape[:2], 2, 6).permute(0, 1, 3, 2).reshape(*x.shape[:2], D)
    return y.relu()


@whole()
def channel_shuffle(s: Any, x: Tensor, c: Tensor) -> Any:
    return s.mix(x).view(*x.shape[:2], 3, 4).transpose(-1, -2).flatten(2)


@whole()
def interleave(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return torch.stack([a, b], -1).flatten(-2).relu()


@whole()
def swapped(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return torch.cat([b, a], -1)


@whole()
def layer_scale(s: Any, x: Tensor, c: Tensor) -> Any:
    return c + s.mix(x) * c


@whole()
def head_loop(s: Any, x: Tensor, c: Tensor) -> Any:
    k, v = s.out(c), c
    outs = []
    for q1, k1, v1 in zip(s.mix(x).chunk(3, -1), k.chunk(3, -1), v.chunk(3, -1), strict=False):
        outs.append((q1 @ k1.mT).softmax(-1) @ v1)
    return torch.cat(outs, -1)


@whole()
def head_loop_values(s: Any, x: Tensor, c: Tensor) -> Any:
    outs = []
    for q1, v1 in zip(c.chunk(3, -1), s.mix(x).chunk(3, -1), strict=False):
        outs.append((q1 @ q1.mT).softmax(-1) @ v1)
    return torch.cat(outs, -1)


@whole()
def heads_view(s: Any, x: Tensor, c: Tensor) -> Any:
    q = s.mix(x).view(*x.shape[:2], 3, 4).transpose(1, 2)
    k = s.out(c).view(*x.shape[:2], 3, 4).transpose(1, 2)
    return ((q @ k.mT).softmax(-1) @ k).transpose(1, 2).flatten(2)


@whole()
def positions_in_two(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x)
    a, b = y[:, :2], y[:, 2:]
    return torch.cat([a * c[:, :2], b], 1)


@whole()
def batch_in_two(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2)
    p, q = c.chunk(2)
    return torch.cat([a * p + b * q, a])


@whole()
def mean_of_halves(s: Any, x: Tensor, c: Tensor) -> Any:
    a, b = s.mix(x).chunk(2, -1)
    return torch.cat([(a + b) / 2] * 2, -1)


@whole()
def groups_softmax(s: Any, x: Tensor, c: Tensor) -> Any:
    return torch.cat([g.softmax(-1) for g in s.mix(x).split(4, -1)], -1)


@whole()
def group_norm_by_hand(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x).view(*x.shape[:2], 3, 4)
    y = (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True)
    return y.flatten(2) * c


@whole()
def temporal_shift(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x)
    out = torch.zeros_like(y)
    out[:, :-1, :4] = y[:, 1:, :4]
    out[:, 1:, 4:8] = y[:, :-1, 4:8]
    out[:, :, 8:] = y[:, :, 8:]
    return out


@whole()
def last_and_action(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x)
    return y[:, -1:] * c[:, -1:] + y[:, :1] * c[:, :1]


@whole()
def masked(s: Any, x: Tensor, c: Tensor) -> Any:
    y = s.mix(x)
    return torch.where(c > 0, y, torch.zeros_like(y)) + y.masked_fill(c > 0, 0.0)


@whole()
def gated_by_others(s: Any, x: Tensor, c: Tensor) -> Any:
    return s.mix(x) * s.out(c).sigmoid() + c * (1 - s.out(c).sigmoid())


# --------------------------------------------------------------------------------------------------------------- tests


def read(block: Block, example: Tensor | None) -> list[Any]:
    options = {} if example is None else {"example": example}
    return [entry for entry in resolve(Net(block), strict=True, **options) if entry.name == "block.mix.weight"]


@pytest.mark.parametrize("example", [None, TOKENS], ids=["alone", "example"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_meet_something_else_each_are_matrices_of_their_own(name: str, example: Tensor | None) -> None:
    body, rows, layers = PARTS[name]
    count = sum(map(len, rows))
    entries = read(Block(body, count, **layers), example)
    places = torch.arange(count)
    assert {frozenset(places[entry.where].tolist()) for entry in entries} == {frozenset(part) for part in rows}
    assert all(entry.action == "project" for entry in entries)


@pytest.mark.parametrize("example", [None, TOKENS], ids=["alone", "example"])
@pytest.mark.parametrize("name", WHOLE)
def test_parts_that_are_put_together_again_are_one_matrix(name: str, example: Tensor | None) -> None:
    body, layers = WHOLE[name]
    (entry,) = read(Block(body, D, **layers), example)
    assert entry.rows is None
    assert entry.action == "project"


@pytest.mark.filterwarnings("ignore")  # of layers that a forward pass here does not call
@pytest.mark.parametrize("name", ["gate", "gate_loop", "parts_to_a_module", "own_dataclass"])
def test_all_readers_of_a_model_agree_about_a_gate(name: str) -> None:
    torch.manual_seed(0)
    body, rows, layers = PARTS[name]
    model = Net(Block(body, 2 * D, **layers))
    cuts = [(0, D), (D, 2 * D)]
    assert [m.rows for m in matrices(model) if m.name == "block.mix.weight"] == cuts
    (group,) = [g for g in muon_groups(model).muon if any(p is model.block.mix.weight for p in g["params"])]
    assert [cut[1] for cut in group["cuts"]] == cuts
    fire_(model, solver="exact", example=TOKENS)
    for part in rows:
        values = torch.linalg.svdvals(model.block.mix.weight.detach()[part].double())
        torch.testing.assert_close(values, torch.full_like(values, float(values.mean())), rtol=1e-3, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_gate_that_does_not_run_alone_is_kept_and_named_with_the_line() -> None:
    class Needy(Block):
        def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
            y, n = self.mix(x).sigmoid(), cache["now"].shape[-1]
            return y[..., :n] * cache["past"] + y[..., n:] * cache["now"]

    (entry,) = (e for e in resolve(Needy(PARTS["gate"][0], 2 * D)) if e.name == "mix.weight")
    assert entry.action == "keep"
    assert "parts that meet different operations" in entry.reason
    assert "test_other_operands.py:" in entry.reason
