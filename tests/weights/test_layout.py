"""Layouts: which weights are chosen, and by what words; on the architectures that people really train."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fire_core import fire_
from fire_core.weights.layout import GROUPS, PRESETS, resolve
from tests.networks import GPT, Mamba, SeparateAttention, SwiGLU
from tests.weights.test_blocks import by_label
from tests.zygote import ROOT


def chosen(model: nn.Module, *args, action: str = "project", **kwargs) -> set[str]:
    return {entry.label for entry in resolve(model, *args, **kwargs) if entry.action == action}


# ------------------------------------------------------------------------------------------------------ convolutions


@pytest.mark.parametrize(
    ("layer", "count", "shape", "positions"),
    [
        (nn.Conv1d(4, 6, 5), 5, (6, 4), 5),
        (nn.Conv2d(4, 6, 1), 1, (6, 4), 1),
        (nn.Conv2d(4, 6, (3, 2)), 6, (6, 4), 6),
        (nn.Conv3d(4, 6, 2), 8, (6, 4), 8),
        (nn.Conv2d(4, 6, 3, groups=2), 18, (3, 2), 9),
        (nn.ConvTranspose1d(4, 6, 3), 3, (6, 4), 3),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 18, (3, 2), 9),
        (nn.Linear(4, 6), 1, (6, 4), 1),
    ],
    ids=lambda value: str(value).split("(")[0] if isinstance(value, nn.Module) else None,
)
def test_matrices_of_a_layer(layer, count, shape, positions):
    entry = by_label(nn.ModuleDict({"l": layer}))["l.weight"]
    assert (entry.action, entry.count, entry.shape, entry.positions) == ("project", count, shape, positions)


@pytest.mark.parametrize("layer", [nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Conv2d(4, 6, 3, groups=2)])
def test_a_group_maps_inputs_to_outputs_by_its_own_matrices(layer):
    """At one kernel position, a delta input through the layer is the matrix product."""
    entry = by_label(nn.ModuleDict({"l": layer}))["l.weight"]
    matrices = entry.view(layer.weight.detach())  # (g, kh, kw, out, in)
    x = torch.zeros(1, 4, 7, 7)
    x[0, :, 3, 3] = torch.randn(4)
    out = layer(x) - layer.bias[:, None, None]
    expected = torch.stack([matrices[g, 2, 0] @ x[0, 2 * g : 2 * g + 2, 3, 3] for g in range(2)]).flatten()
    position = (5, 3) if isinstance(layer, nn.ConvTranspose2d) else (1, 3)
    torch.testing.assert_close(out[0, :, *position].detach(), expected)


# --------------------------------------------------------------------------------------- words, and what they take


class HybridBlock(nn.Module):
    """A block whose mixer, attention or Mamba, is called `attn` either way: names alone cannot tell them apart."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.attn = mixer
        self.mlp = SwiGLU(8, 16)


class Hybrid(nn.Module):
    """Stands in for a language model with Mamba and attention blocks (the parameter table of the integration log)."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(30, 8)
        self.h = nn.ModuleList([HybridBlock(SeparateAttention()), HybridBlock(Mamba())])
        self.resid_lambdas = nn.Parameter(torch.ones(2))
        self.x0_lambdas = nn.Parameter(torch.ones(2))
        self.lm_head = nn.Linear(8, 30, bias=False)


def timm_vit() -> nn.Module:
    return pytest.importorskip("timm").models.vision_transformer.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3, mlp_ratio=2, num_classes=3
    )


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 2))


def labels(base: str, names: str) -> set[str]:
    return {f"{base}.{name}" for name in names.split()}


MIXER = {"*.in_proj.weight": {"gate": 16, "x": 16, "B": 5, "C": 5, "dt": 4}}  # a class of ours: nobody else can know
SSM = {*(f"h.1.attn.in_proj.weight[{part}]" for part in ("gate", "x", "B", "C", "dt")), "h.1.attn.out_proj.weight"}
SEPARATE = labels("h.0.attn", "c_q.weight c_k.weight c_v.weight c_proj.weight")
MLPS = {f"h.{block}.mlp.c_{name}.weight" for block in (0, 1) for name in ("fc", "proj", "gate")}
H0 = "transformer.h.0"
# (model, options, what is projected)
CHOICES: list[tuple[Callable[[], nn.Module], dict, set[str]]] = [
    (lambda: GPT(n_layer=1), {"layout": "mlp"}, labels(f"{H0}.mlp", "c_fc.weight c_proj.weight")),
    (lambda: GPT(n_layer=1), {"layout": "qk"}, labels(f"{H0}.attn", "c_attn.weight[q] c_attn.weight[k]")),
    (lambda: GPT(n_layer=1), {"layout": "conv"}, set()),
    (lambda: GPT(n_layer=0), {"layout": "gpt"}, {"transformer.wte.weight"}),  # tied to the head
    (lambda: GPT(n_layer=0), {"exclude": ["lm_head"]}, set()),
    (lambda: GPT(n_layer=0), {"exclude": nn.Embedding}, set()),
    (timm_vit, {"layout": "qk"}, labels("blocks.0.attn", "qkv.weight[q] qkv.weight[k]")),
    (timm_vit, {"layout": "mlp"}, labels("blocks.0.mlp", "fc1.weight fc2.weight")),
    (
        timm_vit, {"layout": "attention"},
        labels("blocks.0.attn", "qkv.weight[q] qkv.weight[k] qkv.weight[v] proj.weight"),
    ),
    (timm_vit, {"layout": {"head": "project"}}, {"head.weight"}),
    (lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4), {"layout": "qk"}, {"q_proj_weight", "k_proj_weight"}),
    # Of the hybrid's 23 parameters, those that FIRE applies to; attention is told by what surrounds it.
    (Hybrid, {"exclude": "lm_head", "blocks": MIXER}, SEPARATE | MLPS | SSM),
    (Hybrid, {}, SEPARATE | MLPS | {"h.1.attn.out_proj.weight", "lm_head.weight"}),
    (Hybrid, {"layout": "attention"}, SEPARATE),
    (Hybrid, {"layout": {"ssm": "project"}, "blocks": MIXER}, SSM),
    (Hybrid, {"layout": {"linear": "project", "head": "keep"}, "blocks": MIXER}, SEPARATE | MLPS | SSM),
    (Hybrid, {"layout": "attention", "include": [nn.Embedding]}, SEPARATE | {"wte.weight"}),
    (Hybrid, {"layout": {"embedding": "project"}}, {"wte.weight"}),
    (Hybrid, {"layout": "attention", "include": ["*.B_bias"]}, SEPARATE | {"h.1.attn.B_bias"}),
    (Hybrid, {"exclude": ["lm_head", Mamba]}, SEPARATE | MLPS),
    (Hybrid, {"exclude": ["lm_head", "h.1.attn.*"]}, SEPARATE | MLPS),
    (small_net, {"layout": {"conv": "project", "linear": "reinit", "4": "keep"}}, {"0.weight"}),  # later ones win
    (lambda: nn.Sequential(nn.Conv2d(6, 6, 3, groups=6)), {}, set()),
    (lambda: nn.Sequential(nn.Conv2d(6, 6, 3, groups=6)), {"layout": {"depthwise": "project"}}, {"0.weight"}),
]  # fmt: skip


@pytest.mark.parametrize(("build", "options", "expected"), CHOICES)
def test_what_is_chosen(build, options, expected):
    assert chosen(build(), **options) == expected


def test_modules_and_parameters_are_selectors():
    model = Hybrid()
    options = {"exclude": [model.h[1].attn, model.lm_head.weight]}
    assert chosen(model, **options) == SEPARATE | MLPS
    assert "in_proj.weight is kept; it looks fused: it feeds a state-space mixer" in resolve(model).warnings[0]


def test_reinit_takes_biases_too():
    model = small_net()
    layout = {"conv": "project", "linear": "reinit", "4": "keep"}
    assert chosen(model, layout, action="reinit") == {"3.weight", "3.bias"}
    assert chosen(model, "dqn", action="reinit") == {"3.weight", "3.bias", "4.weight", "4.bias"}
    assert chosen(model, {"1": "reinit"}, action="reinit") == {"1.weight", "1.bias"}


def test_roles_and_names_of_a_gpt():
    entries = by_label(GPT(n_layer=1))
    expected = {"attn.c_attn.weight[k]": "k", "attn.c_attn.bias[k]": "k", "attn.c_proj.weight": "attention_out"}
    assert {name: entries[f"{H0}.{name}"].role for name in expected} == expected
    assert entries["transformer.ln_f.weight"].role == "other"
    tied = entries["transformer.wte.weight"]
    assert (tied.role, tied.aliases) == ("head", ("transformer.wte.weight", "lm_head.weight"))
    assert "lm_head.weight" not in entries
    assert entries["transformer.wpe.weight"].action == "keep"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"layout": "al"}, "layout='al'.*all, attention, qk"),
        ({"layout": {"conv": "projct"}}, r"layout\['conv'\]='projct'.*project, reinit, keep"),
        ({"layout": {"fc9": "keep"}}, "no parameter matches 'fc9'"),
        ({"include": ["*.bias"]}, "only biases"),
        ({"exclude": ["0.wieght"]}, "no parameter matches '0.wieght'; near it: 0.weight"),
        ({"include": "encoder.*"}, r"no parameter matches 'encoder.\*'; the first are 0.weight, 0.bias"),
        ({"include": "0.weigth*"}, r"no parameter matches '0.weigth\*'; near it: 0.weight"),
        ({"exclude": [nn.LSTM]}, "no parameter matches"),
        ({"layout": 3}, "layout=3: give a preset's name"),
        ({"layout": ["linear"]}, r"layout=\['linear'\]: give"),
        ({"layout": {"liner": "project"}}, "no parameter matches 'liner'; near it: linear.*; words: linear, conv,"),
        ({"include": 3}, "include=3: give a pattern, a type"),
        ({"exclude": None}, "exclude=None: give a pattern, a type"),
        ({"transposed": 3}, "transposed=3: give a pattern"),
        ({"transposed": [3]}, r"transposed=\[3\]: give a pattern"),
        ({"transposed": "x*"}, r"no parameter matches 'x\*'"),
        ({"blocks": 3}, "blocks=3: give a mapping"),
        ({"blocks": {3: (2, 2)}}, r"blocks=\{3: \(2, 2\)\}: give a mapping"),
        ({"blocks": {"0.weight": 3}}, r"blocks of 0\.weight: give heights, .* got 3"),
    ],
)
def test_errors_name_the_option(kwargs, message):
    with pytest.raises(ValueError, match=message):
        resolve(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), **kwargs)


def test_a_lazy_model_without_shapes():
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        resolve(nn.Sequential(nn.LazyLinear(3)))


def test_wrappers_are_looked_through():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    plain = [entry.name for entry in resolve(model)]
    assert [entry.name for entry in resolve(torch.compile(model, backend="eager"))] == plain
    partly = nn.Sequential(torch.compile(model[0], backend="eager"), model[1], model[2])
    assert [entry.name for entry in resolve(partly)] == plain


# ------------------------------------------------------------------------------ the layouts that docs/scales.md shows

PAGE = (ROOT / "docs/scales.md").read_text()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv, self.head = nn.Embedding(5, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 3)
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.blocks[0].mix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.embedding(x).mT).mT
        return self.head(self.blocks[0](x) @ self.blocks[0].mix)


def test_include_is_beside_the_default_and_a_mapping_is_the_whole_list() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    dense = {"blocks.0.weight", "conv.weight", "head.weight"}
    wanted = [dense | {"blocks.0.mix"}, dense - {"head.weight"} | {"embedding.weight"}, {"blocks.0.weight"}]
    calls = [line for line in code.splitlines() if not line.startswith("#")]
    for line, names in zip(calls, wanted, strict=True):
        report = eval(line, {"fire_": fire_, "model": Own()})
        assert {row.name for row in report.rows if row.action == "project"} == names, line


def test_its_words_are_all_words() -> None:
    layouts = PAGE[: PAGE.index("## Which `scale=`")]
    assert set(re.findall(r"`(\w+)`", layouts)) >= GROUPS.keys()
    assert set(re.findall(r'`"(\w+)"`', layouts)) == PRESETS.keys()


def test_a_layer_that_blocks_share_is_no_head() -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8)) for _ in range(2)])
    model[1][0].weight = model[0][0].weight
    assert [entry.role for entry in resolve(model) if entry.kind == "matrix"] == ["mlp"] * 3


def test_a_layer_that_makes_shifts_and_scales_is_kept_and_named() -> None:
    block = nn.ModuleDict({"adaLN_modulation": nn.Sequential(nn.SiLU(), nn.Linear(8, 48)), "fc": nn.Linear(8, 8)})
    kept = {entry.name: entry.reason for entry in resolve(nn.Sequential(block)) if entry.action == "keep"}
    assert "adaLN_modulation of ModuleDict modulates" in kept["0.adaLN_modulation.1.weight"]


def test_a_convolution_of_one_map_to_one_is_kept_as_depthwise_ones_are() -> None:
    entries = resolve(nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Conv2d(1, 4, 3, bias=False)))
    assert [entry.action for entry in entries] == ["keep", "project"]


def test_a_router_and_an_adapter_are_kept_by_their_names_alone() -> None:
    names = ("router_gate", "routing_fn", "up")
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
    model["up_adapter_list"] = nn.ModuleList([nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))])
    roles = [entry.role for entry in resolve(model) if entry.kind == "matrix"]
    assert roles == ["router", "router", "mlp", "adapter", "adapter"]


class ClippedLinear(nn.ModuleDict):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__({"linear": linear})


@pytest.mark.parametrize("around", [nn.Sequential, ClippedLinear])
@pytest.mark.parametrize(
    "names",
    [
        *("linear_q linear_k linear_v", "query_proj key_proj value_proj", "Wq Wk Wv", "project_q project_k project_v"),
        *("W_Q W_K W_V", "w_qs w_ks w_vs", "q_linear k_linear v_linear", "to_queries to_keys to_values"),
        *("toqueries tokeys tovalues", "fc_q fc_k fc_v", "query_layer key_layer value_layer", "q_net k_net v_net"),
    ],
)
def test_words_know_the_names_of_projections(names: str, around: Callable[[nn.Module], nn.Module]) -> None:
    attention = nn.ModuleDict({name: around(nn.Linear(4, 4)) for name in (*names.split(), "out")})
    mlp = nn.ModuleDict({name: around(nn.Linear(4, 4)) for name in ("up", "down")})
    roles = [e.role for e in resolve(nn.Sequential(attention, mlp, nn.Linear(4, 4))) if e.kind == "matrix"]
    assert roles == ["q", "k", "v", "attention_out", "mlp", "mlp", "dense"]


def test_words_know_bert_s_block_of_one_layer_a_part() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    entries = resolve(transformers.BertModel(config).encoder)
    assert [e.role for e in entries if e.kind == "matrix"] == ["q", "k", "v", "attention_out", "mlp", "mlp"]


def test_an_attention_of_single_heads_has_an_output() -> None:
    heads = nn.ModuleList(nn.ModuleDict({x: nn.Linear(8, 4) for x in ("key", "query", "value")}) for _ in range(2))
    attention = type("MultiHeadAttention", (nn.ModuleDict,), {})({"heads": heads, "proj": nn.Linear(8, 8)})
    roles = [e.role for e in resolve(nn.Sequential(attention, nn.Linear(8, 8))) if e.kind == "matrix"]
    assert roles == [*"kqvkqv", "attention_out", "dense"]
