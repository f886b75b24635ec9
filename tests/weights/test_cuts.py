"""Weights that hold several matrices, or none: cut right, refused, or kept with a reason."""

import math
import re
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from fire_core import fire_
from fire_core.weights.layout import Entry, resolve


def by_label(model: nn.Module, *args, **kwargs) -> dict[str, Entry]:
    return {entry.label: entry for entry in resolve(model, *args, **kwargs)}


def reasons(model: nn.Module) -> dict[str, str]:
    return {entry.label: entry.reason for entry in resolve(model) if entry.action == "keep"}


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


ROWS = {part: [head * 12 + at * 4 + i for head in range(2) for i in range(4)] for at, part in enumerate("qkv")}


def check_isometries(weight: Tensor) -> None:
    for part in "qkv":
        values = torch.linalg.svdvals(weight[torch.tensor(ROWS[part])].double())
        torch.testing.assert_close(values, torch.ones(8, dtype=torch.float64), atol=1e-4, rtol=0)


# --------------------------------------------------------------------------------- unknown modules: read, or kept


def test_an_unknown_module_is_read_by_a_pass_of_a_copy():
    model = nn.ModuleDict({"attn": Interleaved()})
    fired = []
    model.attn.register_forward_hook(lambda *_: fired.append(1))
    state = torch.get_rng_state()
    entries = by_label(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.attn.calls, fired, model.training) == (0, [], True)
    assert [(entries[f"attn.qkv.weight[{b}]"].rows, entries[f"attn.qkv.weight[{b}]"].repeats) for b in "qkv"] == [
        ((0, 4), 2), ((4, 8), 2), ((8, 12), 2),
    ]  # fmt: skip
    assert entries["attn.qkv.bias[k]"].where.tolist() == ROWS["k"]
    fire_(model, solver="exact")
    check_isometries(model.attn.qkv.weight.detach())


def test_the_order_of_the_blocks_is_read_too():
    entries = by_label(nn.ModuleDict({"attn": Interleaved(order=(2, 0, 1))}))
    assert entries["attn.qkv.weight[q]"].rows == (8, 12)
    assert entries["attn.qkv.weight[v]"].rows == (4, 8)


def test_what_cannot_be_read_is_kept_until_it_is_declared():
    model = nn.ModuleDict({"attn": Opaque()})
    before = model.attn.qkv.weight.detach().clone()
    with pytest.warns(UserWarning, match=r"attn\.qkv\.weight is kept; it looks fused.*blocks="):
        fire_(model)
    assert torch.equal(model.attn.qkv.weight.detach(), before)
    with pytest.raises(ValueError, match=r"strict=True: attn\.qkv\.weight"):
        fire_(model, strict=True)
    fire_(model, solver="exact", blocks={"*.qkv.weight": {"q": 4, "k": 4, "v": 4, "repeats": 2}})
    check_isometries(model.attn.qkv.weight.detach())


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Opaque()

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, {"bias": torch.ones(8)}, 2)


@pytest.mark.parametrize("example", [torch.randn(2, 5, 8), (torch.randn(2, 5, 8),), {"x": torch.randn(2, 5, 8)}])
def test_an_example_tells_the_cuts(example):
    model = Caller().requires_grad_(False)
    model.attn.proj.requires_grad_(True)
    fire_(model, solver="exact", layout="probe", example=example, trainable_only=False)
    check_isometries(model.attn.qkv.weight.detach())
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    assert not model.attn.qkv._forward_pre_hooks
    assert model.training


def test_a_probe_needs_an_input_that_fits():
    with pytest.raises(ValueError, match=r'layout="probe".*example=batch'):
        resolve(Caller(), "probe")
    with pytest.raises(ValueError, match="example: the model does not run on it"):
        resolve(Caller(), "probe", example=torch.randn(2, 5, 7))


def test_gate_and_up_in_every_other_row():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up, self.down = nn.Linear(6, 20), nn.Linear(10, 6)

        def forward(self, x: Tensor) -> Tensor:
            both = self.gate_up(x)
            return self.down(F.silu(both[..., ::2]) * both[..., 1::2])

    entries = by_label(nn.ModuleDict({"mlp": Gated()}))
    gate, up = entries["mlp.gate_up.weight[gate]"], entries["mlp.gate_up.weight[up]"]
    assert (gate.where.tolist(), up.where.tolist()) == (list(range(0, 20, 2)), list(range(1, 20, 2)))
    assert (gate.shape, gate.count, gate.size) == ((10, 6), 1, 60)


def test_moments_of_interleaved_rows_are_reset_with_them():
    model = nn.ModuleDict({"attn": Interleaved()})
    weight = model.attn.qkv.weight
    optimizer = torch.optim.Adam(model.parameters())
    model.attn(torch.randn(2, 5, 8)).square().sum().backward()
    optimizer.step()
    fire_(model, layout="qk", optimizer=optimizer)
    moment = optimizer.state[weight]["exp_avg_sq"]
    assert not moment[torch.tensor(ROWS["q"] + ROWS["k"])].any()
    assert moment[torch.tensor(ROWS["v"])].any()


# --------------------------------------------------------------------------------------------------- declared blocks


def test_blocks_cut_a_convolution():
    model = nn.Sequential(nn.Conv2d(8, 24, 1))
    entries = by_label(model, blocks={"0.weight": (8, 8, 8)})
    assert [entries[f"0.weight[{i}]"].shape for i in range(3)] == [(8, 8)] * 3
    fire_(model, solver="exact", blocks={"0.weight": (8, 8, 8)})
    for block in model[0].weight.detach().flatten(1).chunk(3):
        torch.testing.assert_close(block @ block.mT, torch.eye(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (nn.Conv2d(8, 8, 1, groups=2), {"blocks": {"0.weight": (4, 4)}}, "grouped or transposed convolution"),
        (nn.ConvTranspose2d(8, 8, 1), {"blocks": {"0.weight": (4, 4)}}, "grouped or transposed convolution"),
        (nn.Conv2d(8, 8, 1), {"transposed": ["0.weight"]}, "is a convolution's"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": (3, 4)}}, r"\(3, 4\) add up to 7, not to its 6 rows"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": {"q": 1, "k": 1, "repeats": 2}}}, "2 times, add up to 4"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": (3, 3.0)}}, "whole numbers above 0"),
        (nn.Linear(4, 6), {"blocks": {"0.weight": (6, 0)}}, "whole numbers above 0"),
        (nn.Linear(4, 6), {"blocks": {"1.weight": (3, 3)}}, "no parameter matches"),
    ],
)
def test_blocks_are_never_ignored(layer, options, message):
    with pytest.raises(ValueError, match=message):
        resolve(nn.Sequential(layer), **options)


# ---------------------------------------------------------------------------------------------------- layers of torch


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, "i f g o"), (nn.GRU, "r z n"), (nn.LSTMCell, "i f g o")])
def test_gates_of_recurrent_layers(layer, gates):
    torch.manual_seed(0)
    model = nn.ModuleDict({"rnn": layer(5, 4)})
    report = fire_(model, solver="exact")
    names = gates.split()
    suffix = "" if "Cell" in layer.__name__ else "_l0"
    assert {row.name for row in report} == {f"rnn.weight_{s}h{suffix}[{g}]" for s in "ih" for g in names}
    for side, d_in in (("i", 5), ("h", 4)):
        weight = getattr(model["rnn"], f"weight_{side}h{suffix}").detach()
        for gate in weight.chunk(len(names)):
            values = torch.linalg.svdvals(gate)
            torch.testing.assert_close(values, torch.full_like(values, math.sqrt(4 / d_in)))


def test_a_plain_recurrent_layer_and_the_projection_of_an_lstm_are_whole():
    assert by_label(nn.ModuleDict({"rnn": nn.RNN(5, 4)}))["rnn.weight_hh_l0"].action == "project"
    entries = by_label(nn.ModuleDict({"rnn": nn.LSTM(5, 4, proj_size=2)}))
    assert entries["rnn.weight_hr_l0"].shape == (2, 4)
    assert entries["rnn.weight_hh_l0[f]"].shape == (4, 2)


def test_bilinear_is_kept_and_can_be_included():
    model = nn.ModuleDict({"b": nn.Bilinear(3, 4, 5)})
    assert reasons(model)["b.weight"].startswith("bilinear")
    assert by_label(model, include="b.weight")["b.weight"].count == 5


def test_the_halves_that_torchs_own_glu_takes():
    model = nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 3))
    entries = by_label(model)
    assert [entries[f"0.weight[{b}]"].rows for b in ("value", "gate")] == [(0, 8), (8, 16)]
    assert entries["2.weight"].rows is None


# --------------------------------------------------------------------------- weights that are not what is multiplied


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(4, 6))


def pruned() -> nn.Module:
    layer = nn.Linear(4, 6)
    prune.random_unstructured(layer, "weight", 0.5)
    return layer


def integers() -> nn.Module:
    layer = nn.Linear(4, 6)
    layer.weight = nn.Parameter((layer.weight.detach() * 100).to(torch.int8), requires_grad=False)
    return layer


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (old_weight_norm, "0.weight_v", "weight norm"),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 6)), "0.parametrizations.weight.original1", "WeightNorm"),
        (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), "0.parametrizations.weight.original", "Orthogonal"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 6)), "0.weight_orig", "spectrally normed"),
        (pruned, "0.weight_orig", "pruned"),
        (integers, "0.weight", "int8"),
        (lambda: nn.Linear(4, 6).to(torch.float8_e4m3fn), "0.weight", "float8_e4m3fn"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_cannot_be_projected_are_kept_and_named(make, name, reason):
    model = nn.Sequential(make(), nn.Linear(6, 2))
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
    assert {e.label for e in resolve(model) if e.action == "project"} == {"1.weight"}
    assert "trainable_only=False" in reasons(model)["0.weight"]
    assert by_label(model, include="0.weight")["0.weight"].action == "project"
    assert by_label(model, trainable_only=False)["0.weight"].action == "project"


def test_large_raw_parameters_are_warned_about():
    model = nn.Sequential(nn.Linear(4, 6))
    model.experts = nn.Parameter(torch.randn(3, 6, 4))
    (warning,) = resolve(model).warnings
    assert re.search(r"71 % .* raw parameters .* experts\. include=", warning)


class LowRank(nn.Linear):
    """An adapter inside a linear layer, as in loralib."""

    def __init__(self) -> None:
        super().__init__(4, 6)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(6, 2))


def test_factors_of_adapters_are_kept():
    model = nn.ModuleDict({"l": LowRank()})
    assert {e.label for e in resolve(model) if e.action == "project"} == {"l.weight"}
    assert "product of its factors" in reasons(model)["l.lora_B"]
    assert by_label(model, {"adapter": "project"})["l.lora_A"].action == "project"
