"""Fused layers as public code writes them, with neutral names: how many does a pass on an example cut rightly?

Right: the rows of each part are one matrix. Kept and named: nothing is done wrong, and the caller declares the blocks.
Wrong: rows of several parts in one matrix, without a word. `pytest -s` prints what becomes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core.weights.layout import resolve

D, H = 16, 4  # width, heads
Parts = Sequence[Sequence[int]]


def runs(*heights: int) -> list[list[int]]:
    """Rows of parts that lie one after the other."""
    ends = torch.tensor(heights).cumsum(0).tolist()
    return [[*range(end - height, end)] for end, height in zip(ends, heights, strict=True)]


def by_head(*heights: int, heads: int = H) -> list[list[int]]:
    """Rows of parts that take turns, head by head."""
    period = sum(heights)
    return [[head * period + row for head in range(heads) for row in part] for part in runs(*heights)]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """A layer `a`, the fused one, layers beside it, and a forward pass."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def single_stream(s: Any, x: Tensor) -> Tensor:  # Flux
    q, k, v, m = s.a(x).split((D, D, D, 4 * D), -1)
    return x + s.b(torch.cat([F.scaled_dot_product_attention(q, k, v), F.gelu(m)], -1))


def latent(s: Any, x: Tensor) -> Tensor:  # DeepSeek's keys and values of each head, from one latent vector
    k, v = s.a(x).view(*x.shape[:2], H, 6 + 5).split([6, 5], -1)
    q = s.c(x).view(*x.shape[:2], H, 6)
    return s.b(joined(attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))))


def simple_gate(s: Any, x: Tensor) -> Tensor:  # NAFNet
    a, b = s.a(x).chunk(2, 1)
    return s.b(a * b)


def nano(s: Any, x: Tensor) -> Tensor:  # nanoGPT
    q, k, v = s.a(x).split(D, dim=2)
    return s.b(joined(F.scaled_dot_product_attention(heads_of(q), heads_of(k), heads_of(v), is_causal=True)))


def swin(s: Any, x: Tensor) -> Tensor:
    q, k, v = s.a(x).reshape(*x.shape[:2], 3, H, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return s.b(joined(attend(q, k, v)))


def indexed(s: Any, x: Tensor) -> Tensor:
    parts = s.a(x).reshape(*x.shape[:2], 3, H, -1).permute(2, 0, 3, 1, 4)
    return s.b(joined(attend(parts[0], parts[1], parts[2])))


def neox(s: Any, x: Tensor) -> Tensor:
    q, k, v = s.a(x).view(*x.shape[:2], H, -1).transpose(1, 2).chunk(3, -1)
    return s.b(joined(attend(q, k, v)))


def one_key(s: Any, x: Tensor) -> Tensor:  # multi-query attention: Falcon, StarCoder
    q, k, v = s.a(x).split([D, 4, 4], -1)
    return s.b(joined(attend(heads_of(q), k[:, None], v[:, None])))


def grouped(s: Any, x: Tensor) -> Tensor:  # Phi-3: grouped queries, cut by slices
    y = s.a(x)
    q, k, v = y[..., :D], y[..., D : D + 8], y[..., D + 8 :]
    k, v = (t.unflatten(-1, (2, 4)).repeat_interleave(2, 2).transpose(1, 2) for t in (k, v))
    return s.b(joined(attend(heads_of(q), k, v)))


def keys_and_values(s: Any, x: Tensor) -> Tensor:  # cross attention of lucidrains' repositories
    k, v = s.a(x).chunk(2, dim=-1)
    return s.b(joined(attend(heads_of(s.c(x)), heads_of(k), heads_of(v))))


def image_attention(s: Any, x: Tensor) -> Tensor:  # a 1 x 1 convolution, over pixels
    q, k, v = (t.flatten(2) for t in s.a(x).chunk(3, dim=1))
    return s.b((v @ (q.transpose(1, 2) @ k).softmax(-1).transpose(1, 2)).view(*x.shape))


def linear_attention(s: Any, x: Tensor) -> Tensor:
    q, k, v = s.a(x).chunk(3, -1)
    return s.b(q.softmax(-1) @ (k.softmax(1).transpose(1, 2) @ v))


def swiglu(s: Any, x: Tensor) -> Tensor:
    a, b = s.a(x).chunk(2, -1)
    return s.b(F.silu(a) * b)


def geglu(s: Any, x: Tensor) -> Tensor:  # diffusers
    values, gate = s.a(x).chunk(2, dim=-1)
    return s.b(values * F.gelu(gate))


def glu(s: Any, x: Tensor) -> Tensor:  # Conformer
    return s.b(F.glu(s.a(x), dim=1))


def wavenet(s: Any, x: Tensor) -> Tensor:
    a, b = torch.split(s.a(x), 8, dim=1)
    return s.b(torch.tanh(a) * torch.sigmoid(b))


def pixel(s: Any, x: Tensor) -> Tensor:  # PixelCNN++
    a, b = torch.chunk(s.a(F.elu(x)), 2, dim=1)
    return x + s.b(a * torch.sigmoid(b))


def spatial_gate(s: Any, x: Tensor) -> Tensor:  # gMLP
    u, v = F.gelu(s.a(x)).chunk(2, dim=-1)
    return s.b(u * s.c(v.transpose(1, 2)).transpose(1, 2))


def gated_unit(s: Any, x: Tensor) -> Tensor:  # GAU: u, v and a base for queries and keys
    u, v, base = F.silu(s.a(x)).split([2 * D, 2 * D, 8], -1)
    scores = F.relu((base * s.q) @ (base * s.k).transpose(1, 2)) ** 2
    return s.b(u * (scores @ v))


def highway(s: Any, x: Tensor) -> Tensor:
    h, t = s.a(x).chunk(2, -1)
    t = t.sigmoid()
    return s.b(h.relu() * t + x * (1 - t))


def triangle(s: Any, x: Tensor) -> Tensor:  # AlphaFold
    a, b = s.a(x).chunk(2, -1)
    return s.b(torch.einsum("bid,bjd->bij", a, b) @ x)


def recurrent(s: Any, x: Tensor) -> Tensor:  # a GRU by hand
    h = torch.zeros_like(x[:, 0])
    for step in x.unbind(1):
        r, z, n = s.a(step).chunk(3, 1)
        hr, hz, hn = s.c(h).chunk(3, 1)
        z = (z + hz).sigmoid()
        h = z * h + (1 - z) * (n + (r + hr).sigmoid() * hn).tanh()
    return s.b(h)


def memory_cell(s: Any, x: Tensor) -> Tensor:  # an LSTM by hand
    h = c = torch.zeros_like(x[:, 0])
    for step in x.unbind(1):
        i, f, g, o = s.a(torch.cat([step, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return s.b(h)


def map_cell(s: Any, x: Tensor) -> Tensor:  # ConvLSTM
    h = c = torch.zeros_like(x)
    for _ in range(2):
        i, f, o, g = torch.split(s.a(torch.cat([x, h], 1)), 6, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return s.b(h)


def modulated(s: Any, x: Tensor) -> Tensor:  # DiT
    shift, scale, gate = s.a(F.silu(x[:, :1])).chunk(3, dim=-1)
    return x + gate * s.b(F.layer_norm(x, (D,)) * (1 + scale) + shift)


def film(s: Any, x: Tensor) -> Tensor:
    gamma, beta = torch.split(s.a(x.mean((2, 3))), 6, dim=-1)
    return s.b(x * gamma[..., None, None] + beta[..., None, None])


def scale_and_shift(s: Any, x: Tensor) -> Tensor:  # the time embedding of a U-Net
    scale, shift = s.a(x.mean((2, 3)))[..., None, None].chunk(2, dim=1)
    return s.b(F.silu(s.norm(x) * (scale + 1) + shift))


def coupling(s: Any, x: Tensor) -> Tensor:  # RealNVP
    scale, shift = s.a(x).chunk(2, -1)
    return s.b(x * torch.exp(scale.tanh()) + shift)


def variational(s: Any, x: Tensor) -> Tensor:
    mean, logvar = s.a(x).chunk(2, -1)
    return s.b(mean + torch.randn_like(mean) * torch.exp(0.5 * logvar))


def state_space(s: Any, x: Tensor) -> Tensor:  # Mamba-2's projection into gate, values, B, C and steps
    z, v, b, c, dt = s.a(x).split([D, D, 4, 4, 1], -1)
    return s.b(F.silu(z) * ((c @ b.transpose(1, 2)).tril() @ (v * F.softplus(dt))))


def hyena(s: Any, x: Tensor) -> Tensor:
    first, second, v = s.a(x).chunk(3, -1)
    return s.b(first * s.c((second * v).transpose(1, 2)).transpose(1, 2))


def addressing(s: Any, x: Tensor) -> Tensor:  # a neural Turing machine's head
    key, strength, gate = s.a(x).split([D, 1, 1], -1)
    weights = (F.softplus(strength) * (F.normalize(key, dim=-1) @ s.memory.T)).softmax(-1)
    return s.b((gate.sigmoid() * weights) @ s.memory)


def sliced_weight(s: Any, x: Tensor) -> Tensor:  # torch's own attention, by hand
    w = s.a.weight
    return s.b(attend(F.linear(x, w[:D]), F.linear(x, w[D : 2 * D]), F.linear(x, w[2 * D :])))


def bilinear(s: Any, x: Tensor) -> Tensor:
    y = s.a(x)
    return s.b(y[..., :D] * y[..., D:])


def even_and_odd(s: Any, x: Tensor) -> Tensor:  # gpt-oss: gate and up take turns
    y = s.a(x)
    gate, up = y[..., ::2], y[..., 1::2]
    return s.b((up + 1) * gate * torch.sigmoid(gate * 1.702))


def parallel(s: Any, x: Tensor) -> Tensor:  # PaLM: attention and a gated MLP from one layer
    q, k, v, gate, up = s.a(x).split([D, 4, 4, 2 * D, 2 * D], -1)
    return s.b(torch.cat([joined(attend(heads_of(q), k[:, None], v[:, None])), F.silu(gate) * up], -1))


def tokens(out: int, *beside: tuple[str, int, int], back: int = D, into: int = D, bias: bool = True) -> Any:
    layers: dict[str, nn.Module] = {name: nn.Linear(n, m) for name, n, m in beside}
    return lambda: {"a": nn.Linear(into, out, bias=bias), "b": nn.Linear(back, D), **layers}


def maps(out: int, back: int, into: int = 6, side: int = 1) -> Any:
    return lambda: {"a": nn.Conv2d(into, out, side, padding=side // 2), "b": nn.Conv2d(back, 6, 1)}


X, IMAGE = torch.randn(2, 7, D, generator=torch.Generator().manual_seed(0)), torch.randn(2, 6, 5, 5)
CASES: dict[Callable[[Any, Tensor], Tensor], tuple[Any, Parts]] = {
    single_stream: (tokens(7 * D, back=5 * D), runs(D, D, D, 4 * D)),
    latent: (tokens(H * 11, ("c", D, H * 6), back=H * 5), by_head(6, 5)),
    simple_gate: (maps(12, 6), runs(6, 6)),
    nano: (tokens(3 * D), runs(D, D, D)),
    swin: (tokens(3 * D), runs(D, D, D)),
    indexed: (tokens(3 * D, bias=False), runs(D, D, D)),
    neox: (tokens(3 * D), by_head(4, 4, 4)),
    one_key: (tokens(D + 8), runs(D, 4, 4)),
    grouped: (tokens(D + 16), runs(D, 8, 8)),
    keys_and_values: (tokens(2 * D, ("c", D, D)), runs(D, D)),
    image_attention: (maps(18, 6), runs(6, 6, 6)),
    linear_attention: (tokens(3 * D), runs(D, D, D)),
    swiglu: (tokens(48, back=24), runs(24, 24)),
    geglu: (tokens(48, back=24), runs(24, 24)),
    glu: (maps(12, 6), runs(6, 6)),
    wavenet: (maps(16, 8, side=3), runs(8, 8)),
    pixel: (maps(12, 6, side=3), runs(6, 6)),
    spatial_gate: (tokens(48, ("c", 7, 7), back=24), runs(24, 24)),
    gated_unit: (tokens(4 * D + 8, back=2 * D), runs(2 * D, 2 * D, 8)),
    highway: (tokens(2 * D), runs(D, D)),
    triangle: (tokens(2 * D), runs(D, D)),
    recurrent: (tokens(3 * D, ("c", D, 3 * D)), runs(D, D, D)),
    memory_cell: (tokens(4 * D, into=2 * D), runs(D, D, D, D)),
    map_cell: (maps(24, 6, into=12, side=3), runs(6, 6, 6, 6)),
    modulated: (tokens(3 * D), runs(D, D, D)),
    film: (lambda: {"a": nn.Linear(6, 12), "b": nn.Conv2d(6, 6, 1)}, runs(6, 6)),
    scale_and_shift: (
        lambda: {"a": nn.Linear(6, 12), "b": nn.Conv2d(6, 6, 1), "norm": nn.GroupNorm(2, 6)},
        runs(6, 6),
    ),
    coupling: (tokens(2 * D), runs(D, D)),
    variational: (tokens(2 * D), runs(D, D)),
    state_space: (tokens(2 * D + 9), runs(D, D, 4, 4, 1)),
    hyena: (tokens(3 * D, ("c", 7, 7)), runs(D, D, D)),
    addressing: (tokens(D + 2), runs(D, 1, 1)),
    sliced_weight: (tokens(3 * D), runs(D, D, D)),
    bilinear: (tokens(2 * D), runs(D, D)),
    even_and_odd: (tokens(48, back=24), [[*range(0, 48, 2)], [*range(1, 48, 2)]]),
    parallel: (tokens(D + 8 + 4 * D, back=3 * D), runs(D, 4, 4, 2 * D, 2 * D)),
}


def answer(body: Callable[[Any, Tensor], Tensor], with_example: bool) -> str:
    """What becomes of the fused layer: "right", "kept", or "wrong" and how it is cut."""
    torch.manual_seed(0)
    build, parts = CASES[body]
    block = Block(body, **build())
    block.q, block.k = (nn.Parameter(torch.randn(8)) for _ in range(2))
    block.register_buffer("memory", torch.randn(5, D))
    model = nn.Sequential(nn.Identity(), block)
    x = IMAGE if block.a.weight.shape[1] in (6, 12) else X
    model(x)
    entries = [e for e in resolve(model, **({"example": x} if with_example else {})) if e.name == "1.a.weight"]
    if entries[0].action == "keep":
        return "kept"
    index = torch.arange(len(block.a.weight))
    cut = {frozenset(index[entry.where].tolist()) for entry in entries}
    return "right" if cut == {frozenset(part) for part in parts} else f"wrong {sorted(map(sorted, cut))}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_example", [False, True])
def test_fused_layers_of_public_code(with_example: bool) -> None:
    """None is cut wrongly, and with an example most are cut, not kept."""
    answers = {body.__name__: answer(body, with_example) for body in CASES}
    right = [name for name, said in answers.items() if said == "right"]
    print(f"\nexample={with_example}: {len(right)} of {len(answers)} are cut rightly")
    print(*(f"{name}: {said}" for name, said in answers.items() if said != "right"), sep="\n")
    assert len(answers) == 36
    assert not [name for name, said in answers.items() if said.startswith("wrong")]
    assert len(right) >= (24 if with_example else 0)
