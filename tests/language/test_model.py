"""The GPT's options against their formulae in float64, and what it refuses."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from fire_core.weights.forward_pass import read_pass
from fire_core.weights.layout import resolve
from language.model import GPT, Attention, swiglu_hidden

TINY = {"vocab_size": 30, "block_size": 12, "n_layer": 2, "n_head": 4, "n_embd": 16}


def slow_forward(model: GPT, idx: torch.Tensor, activation: str, n_head: int, n_kv_head: int) -> torch.Tensor:
    """The logits, one head at a time, from the weights alone."""
    w = {k: v.detach().double() for k, v in model.state_dict().items()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"]

    x = w["transformer.wte.weight"][idx] + w["transformer.wpe.weight"][: idx.shape[1]]
    width = x.shape[-1] // n_head
    future = torch.ones(idx.shape[1], idx.shape[1]).triu(1).bool()
    for i in range(len(model.transformer["h"])):
        h = f"transformer.h.{i}"
        rows = norm(x, f"{h}.ln_1") @ w[f"{h}.attn.c_attn.weight"].T
        q, k, v = rows.split([n_head * width, n_kv_head * width, n_kv_head * width], dim=-1)
        heads = []
        for j in range(n_head):
            shared = j * n_kv_head // n_head
            qj = q[..., j * width : (j + 1) * width]
            kj, vj = (t[..., shared * width : (shared + 1) * width] for t in (k, v))
            scores = (qj @ kj.mT / math.sqrt(width)).masked_fill(future, -torch.inf)
            heads.append(scores.softmax(-1) @ vj)
        x = x + torch.cat(heads, -1) @ w[f"{h}.attn.c_proj.weight"].T
        y = norm(x, f"{h}.ln_2")
        up = y @ w[f"{h}.mlp.c_fc.weight"].T
        if activation == "swiglu":
            gate = y @ w[f"{h}.mlp.c_gate.weight"].T
            up = gate * torch.sigmoid(gate) * up
        elif activation == "relu2":
            up = up.clamp(min=0) ** 2
        else:
            up = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
        x = x + up @ w[f"{h}.mlp.c_proj.weight"].T
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


@pytest.mark.parametrize("activation", ["gelu", "relu2", "swiglu"])
@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
def test_forward_is_the_formula(activation, n_kv_head):
    torch.manual_seed(0)
    model = GPT(**TINY, activation=activation, n_kv_head=n_kv_head)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # so that attention and gates are far from uniform
    idx = torch.randint(30, (2, 9))
    logits, loss = model(idx, idx)
    expected = slow_forward(model, idx, activation, 4, n_kv_head)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss.double(), F.cross_entropy(expected.flatten(0, 1), idx.flatten()), rtol=1e-5, atol=0)


def test_swiglu_width():
    assert [swiglu_hidden(d) for d in (768, 1536, 96, 97)] == [2048, 4096, 256, 512]
    mlp = GPT(**{**TINY, "n_embd": 96}, activation="swiglu").transformer["h"][0].mlp
    assert mlp.c_fc.weight.shape == mlp.c_gate.weight.shape == (256, 96)
    narrow = GPT(**TINY, activation="swiglu", hidden=44).transformer["h"][0].mlp
    assert narrow.c_proj.weight.shape == (16, 44)


@pytest.mark.parametrize("n_kv_head", [4, 2])
def test_the_cut_of_q_k_and_v_is_known_without_a_forward_pass(n_kv_head, monkeypatch):
    model, name = GPT(**TINY, n_kv_head=n_kv_head, bias=True), "transformer.h.1.attn.c_attn"
    seen = read_pass(model, torch.zeros(1, 5, dtype=torch.long)).cuts[id(model.get_parameter(f"{name}.weight"))]
    monkeypatch.setattr(Attention, "forward", None)
    entries = [e for e in resolve(model, "qk") if e.name.startswith(name)]
    ends = [0, 16, 16 + 4 * n_kv_head, 16 + 8 * n_kv_head]
    rows = list(pairwise(ends))
    for kind in ("weight", "bias"):
        found = {e.label: e.rows for e in entries if e.name.endswith(kind)}
        assert found == {f"{name}.{kind}[{block}]": at for block, at in zip("qkv", rows, strict=True)}
    assert [e.block for e in entries if e.action == "project"] == ["q", "k"]
    assert seen.repeats == 1
    assert [height for _, height in seen.blocks] == [stop - start for start, stop in rows]


def test_the_future_is_not_seen():
    torch.manual_seed(0)
    model = GPT(**TINY, n_kv_head=2)
    idx = torch.randint(30, (1, 10))
    other = idx.clone()
    other[0, 6:] = (other[0, 6:] + 1) % 30
    one, two = (model(tokens, tokens)[0] for tokens in (idx, other))
    torch.testing.assert_close(one[:, :6], two[:, :6], rtol=0, atol=1e-6)
    assert (one[:, 6:] - two[:, 6:]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_embd": 18}, r"^n_embd must be a multiple of n_head=4, got 18$"),
        ({"n_kv_head": 3}, r"^n_kv_head must divide n_head=4, got 3$"),
        ({"activation": "selu"}, r"^activation=selu is unknown; accepted: gelu, relu2, swiglu$"),
        ({"dropout": 1.0}, r"^dropout must be in \[0, 1\), got 1.0$"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        GPT(**{**TINY, **options})


def test_too_long_sequences_are_refused():
    with pytest.raises(ValueError, match="13 tokens do not fit into block_size=12"):
        GPT(**TINY)(torch.zeros(1, 13, dtype=torch.long))
