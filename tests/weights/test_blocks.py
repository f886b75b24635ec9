"""Weights that hold several matrices, or none: cut right, refused, or kept with a reason."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from fire_core import fire_
from fire_core.weights.layout import Entry, resolve
from tests.networks import GPT, GroupedQueryAttention, SwiGLU
from tests.zoo.checks import Cuts, Fused, check_forward_pass, check_singular_values


def by_label(model: nn.Module, *args, **kwargs) -> dict[str, Entry]:
    return {entry.label: entry for entry in resolve(model, *args, **kwargs)}


def reasons(model: nn.Module) -> dict[str, str]:
    return {entry.label: entry.reason for entry in resolve(model) if entry.action == "keep"}


# ------------------------------------------------------------------------- modules, and the blocks that they multiply


class Interleaved(nn.Module):
    """A class that no rule knows: q, k and v interleaved by head, width 4."""

    def __init__(self, heads: int = 2, order: tuple[int, int, int] = (0, 1, 2)) -> None:
        super().__init__()
        self.heads, self.order = heads, order
        self.qkv = nn.Linear(8, 3 * heads * 4)
        self.proj = nn.Linear(heads * 4, 8)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        parts = self.qkv(x).unflatten(2, (self.heads, 3, 4)).transpose(1, 2).unbind(3)
        q, k, v = (parts[i] for i in self.order)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Opaque(Interleaved):
    """The same, but its forward pass wants more than one tensor."""

    def forward(self, x: Tensor, cache: dict[str, Tensor], step: int) -> Tensor:
        return super().forward(x) + cache["bias"] * step


class Gated(nn.Module):
    """Gate and up in every other row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(8, 20), nn.Linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up(x)
        return self.down(F.silu(both[..., ::2]) * both[..., 1::2])


class Parallel(nn.Module):
    """Attention and a gated perceptron beside each other, both fed by one layer, as in PaLM."""

    def __init__(self, glu: bool) -> None:
        super().__init__()
        self.glu, self.heights = glu, (8, 4, 4, 24)
        self.first, self.mixed, self.gated = nn.Linear(8, 40), nn.Linear(8, 8), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, both = self.first(x).split(self.heights, dim=-1)
        q = q.unflatten(-1, (2, 4)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k.unsqueeze(1), v.unsqueeze(1)).transpose(1, 2).flatten(2)
        up, gate = both.chunk(2, -1)
        return self.mixed(mixed) + self.gated(F.glu(both) if self.glu else F.silu(gate) * up)


class KeysBesideValues(nn.Module):
    """Keys and values in one layer, in the given order; queries of their own layer, or learned, with a learned mask."""

    def __init__(self, order: str, is_learned: bool) -> None:
        super().__init__()
        self.order, self.second, self.out = order, nn.Linear(8, 16), nn.Linear(8, 8)
        self.first = None if is_learned else nn.Linear(8, 8)
        self.queries, self.mask = nn.Parameter(torch.randn(1, 3, 8)), nn.Parameter(torch.randn(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        parts = dict(zip(self.order, self.second(x).chunk(2, -1), strict=True))
        if self.first is not None:
            return self.out(F.scaled_dot_product_attention(value=parts["v"], key=parts["k"], query=self.first(x)))
        return self.out(F.scaled_dot_product_attention(self.queries, parts["k"], parts["v"], attn_mask=self.mask * 1))


class Mixer(nn.Module):
    """torch's attention, by itself."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, x[..., : self.attn.kdim], x[..., : self.attn.vdim])[0]


def gates(names: str, *weights: str) -> Cuts:
    """Four rows a gate, which no product of the forward pass shows."""
    return {weight: Fused(" ".join(f"{name} 4" for name in names.split()), seen=False) for weight in weights}


TOKENS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
# name -> (module, its input, the weights that are fused)
MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor, Cuts]] = {
    "interleaved": (lambda: nn.Sequential(Interleaved()), TOKENS, {"0.qkv.weight": Fused("q 4 k 4 v 4", 2)}),
    "k, v, q": (lambda: Interleaved(order=(2, 0, 1)), TOKENS, {"qkv.weight": Fused("k 4 v 4 q 4", 2)}),
    "every other row": (Gated, TOKENS, {"gate_up.weight": Fused("gate 1 up 1", 10)}),
    "GPT": (
        lambda: GPT(n_layer=1), torch.arange(12).view(2, 6),
        {"transformer.h.0.attn.c_attn.weight": Fused("q 12 k 12 v 12")},
    ),
    "grouped queries": (lambda: GroupedQueryAttention(8), TOKENS, {"qkv_proj.weight": Fused("q 12 k 6 v 6")}),
    "gated MLP": (lambda: SwiGLU(8, fused=True), TOKENS, {"gate_up_proj.weight": Fused("gate 10 up 10")}),
    "PaLM": (lambda: Parallel(glu=False), TOKENS, {"first.weight": Fused("0 8 1 4 2 4 3 12 4 12")}),
    "PaLM with torch's GLU": (lambda: Parallel(glu=True), TOKENS, {"first.weight": Fused("0 8 1 4 2 4 3 12 4 12")}),
    "gate apart": (lambda: SwiGLU(8), TOKENS, {}),
    "torch's GLU": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU(), nn.Linear(8, 3)), TOKENS,
        {"0.weight": Fused("value 8 gate 8")},
    ),
    "torch's attention": (Mixer, TOKENS, {"attn.in_proj_weight": Fused("q 8 k 8 v 8", seen=False)}),
    "keys of another width": (lambda: Mixer(kdim=6, vdim=4), TOKENS, {}),
    "LSTM": (lambda: nn.LSTM(8, 4), TOKENS, gates("i f g o", "weight_ih_l0", "weight_hh_l0")),
    "GRU": (lambda: nn.GRU(8, 4), TOKENS, gates("r z n", "weight_ih_l0", "weight_hh_l0")),
    "a cell": (lambda: nn.LSTMCell(8, 4), TOKENS[0], gates("i f g o", "weight_ih", "weight_hh")),
    "RNN": (lambda: nn.RNN(8, 4), TOKENS, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module(name: str) -> None:
    torch.manual_seed(0)
    build, example, cuts = MODULES[name]
    model = build()
    check_forward_pass(model, (example,), cuts)
    check_singular_values(model, cuts)


ROWS = {part: [head * 12 + at * 4 + i for head in range(2) for i in range(4)] for at, part in enumerate("qkv")}


def test_an_unknown_module_is_read_by_a_pass_of_a_copy():
    model = nn.ModuleDict({"attn": Interleaved()})
    fired = []
    model.attn.register_forward_hook(lambda *_: fired.append(1))
    state = torch.get_rng_state()
    entries = by_label(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.attn.calls, fired, model.training) == (0, [], True)
    assert entries["attn.qkv.bias[k]"].where.tolist() == ROWS["k"]


def test_what_cannot_be_read_is_kept_until_it_is_declared():
    model = nn.ModuleDict({"attn": Opaque()})
    before = model.attn.qkv.weight.detach().clone()
    hint = r"attn\.qkv\.weight is kept; it looks fused: its output is cut .*test_blocks.*24 rows"
    hint += r".*blocks=\{'attn.qkv.weight': \(\.\.\.\)\}"
    with pytest.warns(UserWarning, match=hint):
        fire_(model)
    assert torch.equal(model.attn.qkv.weight.detach(), before)
    with pytest.raises(ValueError, match=r"strict=True: attn\.qkv\.weight"):
        fire_(model, strict=True)
    assert by_label(model, include=["attn.qkv.weight"])["attn.qkv.weight"].action == "project"
    assert by_label(model, blocks={"attn.qkv.weight": (12, 6, 6)})["attn.qkv.bias[v]"].rows == (18, 24)
    fire_(model, solver="exact", blocks={"*.qkv.weight": {"q": 4, "k": 4, "v": 4, "repeats": 2}})
    check_isometries(model.attn.qkv.weight.detach())


def check_isometries(weight: Tensor) -> None:
    for part in "qkv":
        values = torch.linalg.svdvals(weight[torch.tensor(ROWS[part])].double())
        torch.testing.assert_close(values, torch.ones(8, dtype=torch.float64), atol=1e-4, rtol=0)


def test_a_module_declares_its_own_blocks_and_the_caller_has_the_last_word():
    class Declaring(Opaque):
        def matrix_blocks(self) -> dict[str, object]:
            return {"qkv.weight": {"q": 4, "k": 4, "v": 4, "repeats": 2}}

    model = nn.ModuleDict({"attn": Declaring()})
    assert by_label(model)["attn.qkv.weight[k]"].where.tolist() == ROWS["k"]
    assert by_label(model)["attn.qkv.bias[k]"].where.tolist() == ROWS["k"]
    assert by_label(model, blocks={"*.qkv.weight": (8, 8, 8)})["attn.qkv.weight[k]"].rows == (8, 16)
    assert by_label(model.to(torch.float8_e4m3fn))["attn.qkv.weight"].kind == "locked"


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Opaque()

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, {"bias": torch.ones(8)}, 2)


@pytest.mark.parametrize("example", [TOKENS, (TOKENS,), {"x": TOKENS}], ids=["tensor", "tuple", "mapping"])
def test_an_example_tells_the_cuts(example):
    model = Caller().requires_grad_(False)
    model.attn.proj.requires_grad_(True)
    fire_(model, solver="exact", example=example, trainable_only=False)
    check_isometries(model.attn.qkv.weight.detach())
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    assert not model.attn.qkv._forward_pre_hooks
    assert model.training


@pytest.mark.parametrize("order", ["kv", "vk"])
@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("options", [{}, {"example": TOKENS}], ids=["alone", "example"])
def test_keys_and_values_in_one_layer_are_told_apart(order: str, is_learned: bool, options: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(KeysBesideValues(order, is_learned))
    heights = {name: entry.rows for name, entry in by_label(model, **options).items() if entry.block}
    assert heights == {f"0.second.weight[{name}]": (8 * i, 8 * i + 8) for i, name in enumerate(order)} | {
        f"0.second.bias[{name}]": (8 * i, 8 * i + 8) for i, name in enumerate(order)
    }
    changed = {row.name for row in fire_(model, layout="qk", **options)}  # type: ignore[arg-type]
    assert "0.second.weight[k]" in changed
    assert "0.second.weight[v]" not in changed


def test_an_example_has_to_fit():
    with pytest.raises(ValueError, match="example: the model does not run on it"):
        resolve(Caller(), example=torch.randn(2, 5, 7))


def test_a_class_of_ones_own_is_not_taken_for_a_known_one():
    """A class that has the name of one of transformers' and other rows is read off its code and a pass."""

    class Phi3Attention(GroupedQueryAttention):
        head_dim, num_attention_heads, num_key_value_heads = 5, 4, 2  # of another layout than its own

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    model = nn.ModuleDict({"attn": Phi3Attention()})
    assert by_label(model)["attn.qkv_proj.weight[k]"].rows == (12, 18)
    Phi3Attention.forward = lambda self, x, mask: super(Phi3Attention, self).forward(x[mask["here"]])
    kept = by_label(model)["attn.qkv_proj.weight"]
    assert kept.action == "keep"
    assert kept.reason.startswith("looks fused: ")


def test_moments_of_interleaved_rows_are_reset_with_them():
    model = nn.ModuleDict({"attn": Interleaved()})
    weight = model.attn.qkv.weight
    optimizer = torch.optim.Adam(model.parameters())
    model.attn(torch.randn(2, 5, 8)).square().sum().backward()
    optimizer.step()
    before = weight.detach().clone()
    fire_(model, layout="qk", optimizer=optimizer)
    assert torch.equal(weight[torch.tensor(ROWS["v"])], before[torch.tensor(ROWS["v"])])
    moment = optimizer.state[weight]["exp_avg_sq"]
    assert not moment[torch.tensor(ROWS["q"] + ROWS["k"])].any()
    assert moment[torch.tensor(ROWS["v"])].any()


# --------------------------------------------------------------------------------------------------- declared blocks


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (nn.Conv2d(8, 8, 1, groups=2), {"blocks": {"0.weight": (4, 4)}}, "grouped convolution"),
        (nn.ConvTranspose2d(8, 8, 1, groups=2), {"blocks": {"0.weight": (2, 2)}}, "grouped convolution"),
        (nn.Conv2d(8, 8, 1), {"transposed": ["0.weight"]}, "is a convolution's"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": (3, 4)}}, r"\(3, 4\) add up to 7, not to its 6 rows"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": {"q": 1, "k": 1, "repeats": 2}}}, "2 times, add up to 4"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": (3, 3.0)}}, "whole numbers above 0"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": (6, 0)}}, "whole numbers above 0"),
        (nn.Linear(4, 6), {"blocks": {"0.wight": (3, 3)}}, "no parameter matches '0.wight'; near it: 0.weight"),
    ],
)
def test_blocks_are_never_ignored(layer, options, message):
    with pytest.raises(ValueError, match=message):
        resolve(nn.Sequential(layer), **options)


# --------------------------------------------------------------------------- weights that are not what is multiplied


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(4, 6))


def pruned() -> nn.Module:
    layer = nn.Linear(4, 6)
    prune.random_unstructured(layer, "weight", 0.5)
    return layer


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (old_weight_norm, "0.weight_v", "weight norm"),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 6)), "0.parametrizations.weight.original1", "WeightNorm"),
        (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), "0.parametrizations.weight.original", "Orthogonal"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 6)), "0.weight_orig", "spectrally normed"),
        (pruned, "0.weight_orig", "pruned"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_cannot_be_projected_are_kept_and_named(make, name, reason):
    model = nn.Sequential(make(), nn.Linear(6, 90))
    before = {key: value.clone() for key, value in model.state_dict().items() if key.startswith("0.")}
    report = fire_(model)
    assert [row.name for row in report] == ["1.weight"]
    assert reason in reasons(model)[name]
    after = model.state_dict()
    assert all(torch.equal(value.float(), after[key].float()) for key, value in before.items() if "_u" not in key)
    with pytest.raises(ValueError, match=f"cannot project {re.escape(name)}"):
        fire_(model, include=name)


def test_frozen_weights_are_kept_unless_asked_for():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    assert "trainable_only=False" in reasons(model)["0.weight"]
    assert by_label(model, include="0.weight")["0.weight"].action == "project"
    assert by_label(model, trainable_only=False)["0.weight"].action == "project"
    assert len(fire_(model, trainable_only=False)) == 2
    assert not model[0].weight.requires_grad


class LowRank(nn.Linear):
    """An adapter inside a linear layer, as in loralib."""

    def __init__(self) -> None:
        super().__init__(4, 6)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(6, 2))


@pytest.mark.parametrize(
    ("build", "name", "reason", "shape"),
    [
        (LowRank, "l.lora_B", "product of its factors", (1, 6, 2)),
        (lambda: nn.Bilinear(3, 4, 5), "l.weight", "bilinear", (5, 3, 4)),
        (lambda: nn.Conv2d(6, 6, 3, groups=6), "l.weight", "depthwise", (54, 1, 1)),
        (lambda: nn.Embedding(5, 4), "l.weight", "an embedding", (1, 5, 4)),
        (lambda: nn.ParameterList([torch.randn(3, 6, 4)]), "l.0", "raw parameter", (3, 6, 4)),
    ],
)
def test_what_is_kept_can_be_included(build, name, reason, shape):
    model = nn.ModuleDict({"l": build()})
    assert reason in reasons(model)[name]
    entry = by_label(model, include=name)[name]
    assert (entry.action, entry.count, *entry.shape) == ("project", *shape)


def test_large_raw_parameters_are_warned_about():
    model = nn.Sequential(nn.Linear(4, 6))
    model.experts = nn.Parameter(torch.randn(3, 6, 4))
    (warning,) = resolve(model).warnings
    assert re.search(r"71 % .* raw parameters .* experts\. include=", warning)


def test_many_computed_weights_are_warned_about():
    """Under weight norm nothing of the model would be projected, and nobody would know."""
    normed = [parametrizations.weight_norm(nn.Linear(4, 6)), parametrizations.spectral_norm(nn.Linear(6, 4))]
    (warning,) = resolve(nn.Sequential(*normed, nn.Linear(4, 2))).warnings
    assert re.search(r"7\d % of the model's numbers are parameters from which modules compute their weights", warning)
    assert not resolve(nn.Sequential(normed[0], nn.Linear(60, 60))).warnings, "little of the model"


def test_expert_stacks_and_transposed_storage():
    model = nn.Module()
    model.experts = nn.Parameter(torch.randn(3, 6, 4))  # (experts, d_in, d_out)
    entry = by_label(model, {"experts": "project"}, transposed=["experts"])["experts"]
    assert (entry.count, entry.shape, entry.positions) == (3, (4, 6), 1)
    fire_(model, layout=[entry], solver="exact", scale="orthogonal")
    for expert in model.experts.detach():
        torch.testing.assert_close(expert.mT @ expert, torch.eye(4), atol=1e-5, rtol=0)


def test_the_projection_of_an_lstm_is_one_matrix():
    entries = by_label(nn.ModuleDict({"rnn": nn.LSTM(5, 4, proj_size=2)}))
    assert entries["rnn.weight_hr_l0"].shape == (2, 4)
    assert entries["rnn.weight_hh_l0[f]"].shape == (4, 2)


def test_a_module_that_declares_a_weight_it_does_not_have():
    class Mistaken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Linear(8, 24, bias=False)

        def matrix_blocks(self) -> dict[str, tuple[int, ...]]:
            return {"p": (8, 8, 8), "p.bias": (8, 8, 8)}

    with pytest.raises(ValueError, match="Mistaken: it has no weight 'p'"):
        resolve(nn.Sequential(Mistaken()))
