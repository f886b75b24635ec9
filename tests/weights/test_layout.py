"""Layouts: which weights, cut into which matrices; on the architectures that people really train."""

import re

import pytest
import torch
from torch import nn

from fire_core import fire_
from fire_core.weights.layout import GROUPS, PRESETS, Entry, resolve
from tests.networks import GPT, GroupedQueryAttention, Mamba, SeparateAttention, SwiGLU


def chosen(model: nn.Module, *args, action: str = "project", **kwargs) -> set[str]:
    return {entry.label for entry in resolve(model, *args, **kwargs) if entry.action == action}


def by_label(model: nn.Module, *args, **kwargs) -> dict[str, Entry]:
    return {entry.label: entry for entry in resolve(model, *args, **kwargs)}


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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_view_of_a_convolution_is_its_kernel_positions(memory_format):
    conv = nn.Conv2d(4, 6, 3, groups=2).to(memory_format=memory_format)
    entry = by_label(nn.ModuleDict({"l": conv}))["l.weight"]
    view = entry.view(conv.weight.detach())
    assert view.shape == (2, 3, 3, 3, 2)
    assert torch.equal(view[1, 2, 0], conv.weight[3:, :, 2, 0])
    view.zero_()  # a view, not a copy
    assert not conv.weight.any()


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


def test_depthwise_is_kept_unless_included():
    model = nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 8, 1), nn.Conv2d(1, 4, 3))
    assert chosen(model) == {"1.weight", "2.weight"}
    assert chosen(model, include=["0.weight"]) == {"0.weight", "1.weight", "2.weight"}
    assert chosen(model, {"depthwise": "project"}) == {"0.weight"}
    entry = by_label(model, include=["0"])["0.weight"]
    assert (entry.count, entry.shape) == (54, (1, 1))


# --------------------------------------------------------------------------------------------------------- attention


def test_nanogpt_splits_qkv_and_projects_tied_weights_once():
    model = GPT()
    entries = by_label(model)
    assert [entries[f"transformer.h.0.attn.c_attn.weight[{b}]"].rows for b in "qkv"] == [(0, 12), (12, 24), (24, 36)]
    tied = entries["transformer.wte.weight"]
    assert tied.role == "head"
    assert tied.aliases == ("transformer.wte.weight", "lm_head.weight")
    assert "lm_head.weight" not in entries
    assert entries["transformer.wpe.weight"].action == "keep"
    assert chosen(model, "gpt") == chosen(model, "all")
    assert len(chosen(model)) == 1 + 2 * (3 + 3)


@pytest.mark.parametrize("selector", ["lm_head", "transformer.wte.weight", "*wte*", nn.Embedding])
def test_a_tied_head_can_be_left_alone_by_any_of_its_names(selector):
    assert "transformer.wte.weight" not in chosen(GPT(), exclude=[selector])


def test_roles_of_a_gpt():
    model = GPT(n_layer=1)
    roles = {label: entry.role for label, entry in by_label(model).items()}
    base = "transformer.h.0"
    assert roles[f"{base}.attn.c_attn.weight[k]"] == "k"
    assert roles[f"{base}.attn.c_attn.bias[k]"] == "k"
    assert roles[f"{base}.attn.c_proj.weight"] == "attention_out"
    assert roles[f"{base}.mlp.c_proj.weight"] == "mlp"
    assert roles["transformer.ln_f.weight"] == "other"
    assert chosen(model, "mlp") == {f"{base}.mlp.c_fc.weight", f"{base}.mlp.c_proj.weight"}
    assert chosen(model, "qk") == {f"{base}.attn.c_attn.weight[q]", f"{base}.attn.c_attn.weight[k]"}
    assert len(chosen(model, "attention")) == 4
    assert chosen(model, "conv") == set()


def test_qk_of_a_fused_projection_leaves_v_alone():
    model = GPT(n_layer=1)
    attention = model.transformer["h"][0].attn
    before = attention.c_attn.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        attention.c_attn.weight.copy_(before)
    fire_(model, layout="qk", optimizer=optimizer, solver="exact")
    after = attention.c_attn.weight.detach()
    for block in (after[:12], after[12:24]):
        torch.testing.assert_close(block @ block.mT, torch.eye(12), atol=1e-5, rtol=0)
    assert torch.equal(after[24:], before[24:])
    moment = optimizer.state[attention.c_attn.weight]["exp_avg_sq"]
    assert not moment[:24].any()
    assert moment[24:].any()


def test_a_layout_of_one_block_forgets_that_block_alone():
    model = GPT(n_layer=1)
    weight = model.transformer["h"][0].attn.c_attn.weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    fire_(model, layout=[by_label(model)["transformer.h.0.attn.c_attn.weight[v]"]], optimizer=optimizer)
    moment = optimizer.state[weight]["exp_avg_sq"]
    assert not moment[24:].any()
    assert moment[:24].any()


def test_multihead_attention():
    same, apart = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    model = nn.ModuleDict({"a": same, "b": apart})
    entries = by_label(model)
    assert {label for label in entries if label.startswith("a.in_proj_weight")} == {
        f"a.in_proj_weight[{b}]" for b in "qkv"
    }
    assert entries["b.k_proj_weight"].role == "k"
    assert entries["b.k_proj_weight"].shape == (8, 6)
    out = {"a.out_proj.weight", "b.out_proj.weight"}
    assert chosen(model, "qk") == {"a.in_proj_weight[q]", "a.in_proj_weight[k]", "b.q_proj_weight", "b.k_proj_weight"}
    assert chosen(model) == {f"a.in_proj_weight[{b}]" for b in "qkv"} | {f"b.{b}_proj_weight" for b in "qkv"} | out
    fire_(model, solver="exact")
    for block in same.in_proj_weight.detach().chunk(3):
        torch.testing.assert_close(block @ block.mT, torch.eye(8), atol=1e-5, rtol=0)


def test_torchvision_vit():
    vision_transformer = pytest.importorskip("torchvision.models.vision_transformer")
    model = vision_transformer.VisionTransformer(8, 4, 1, 2, 8, 16, num_classes=3)
    base = "encoder.layers.encoder_layer_0"
    attention = {f"{base}.self_attention.in_proj_weight[{b}]" for b in "qkv"} | {
        f"{base}.self_attention.out_proj.weight"
    }
    assert chosen(model, "attention") == attention
    assert chosen(model, "mlp") == {f"{base}.mlp.0.weight", f"{base}.mlp.3.weight"}
    assert chosen(model) == attention | chosen(model, "mlp") | {"conv_proj.weight", "heads.head.weight"}
    assert by_label(model)["heads.head.weight"].role == "head"


@pytest.mark.filterwarnings("ignore")
def test_timm_vit():
    timm = pytest.importorskip("timm")
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3, mlp_ratio=2, num_classes=3
    )
    assert chosen(model, "qk") == {"blocks.0.attn.qkv.weight[q]", "blocks.0.attn.qkv.weight[k]"}
    assert chosen(model, "mlp") == {"blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"}
    kept = {"cls_token", "pos_embed"}
    assert kept <= chosen(model, action="keep")


def test_grouped_query_attention_has_unequal_blocks():
    model = nn.ModuleDict({"attn": GroupedQueryAttention()})
    entries = by_label(model)
    assert [entries[f"attn.qkv_proj.weight[{b}]"].rows for b in "qkv"] == [(0, 12), (12, 18), (18, 24)]
    scales = {row.name: row.scale for row in fire_(model)}
    assert scales["attn.qkv_proj.weight[q]"] == pytest.approx((12 / 10) ** 0.5)
    assert scales["attn.qkv_proj.weight[k]"] == pytest.approx((6 / 10) ** 0.5)


def test_grouped_query_attention_from_the_width_of_a_head():
    model = nn.ModuleDict({"attn": GroupedQueryAttention()})
    del model.attn.num_kv_heads
    model.attn.head_dim = 3
    assert by_label(model)["attn.qkv_proj.weight[k]"].rows == (12, 18)


def test_a_fused_projection_that_cannot_be_cut_says_how_to_declare_it():
    attention = nn.Module()  # of no class that is known, and without a forward pass that could be read
    attention.qkv_proj, attention.o_proj = nn.Linear(10, 24), nn.Linear(12, 10)
    model = nn.ModuleDict({"attn": attention})
    entries = resolve(model)
    kept = next(entry for entry in entries if entry.name == "attn.qkv_proj.weight")
    assert (kept.action, kept.rows) == ("keep", None)
    assert re.search("looks fused: its name", kept.reason)
    (warning,) = entries.warnings
    assert re.search(
        r"^attn\.qkv_proj\.weight is kept.*24 rows.*blocks=\{'attn.qkv_proj.weight': \(8, 8, 8\)\}", warning
    )
    with pytest.raises(ValueError, match=r"strict=True.*attn\.qkv_proj\.weight.*24 rows.*blocks="):
        resolve(model, strict=True)
    assert "attn.qkv_proj.weight" in chosen(model, include=["attn.qkv_proj.weight"])
    entries = by_label(model, blocks={"attn.qkv_proj.weight": (12, 6, 6)})
    assert entries["attn.qkv_proj.weight[v]"].rows == (18, 24)
    assert entries["attn.qkv_proj.bias[v]"].rows == (18, 24)
    with pytest.raises(ValueError, match="add up to 20"):
        resolve(model, blocks={"attn.qkv_proj.weight": (12, 4, 4)})
    with pytest.raises(ValueError, match=r"no parameter matches 'attn\.qkv'"):
        resolve(model, blocks={"attn.qkv": (12, 6, 6)})


def test_separate_projections():
    model = nn.ModuleDict({"attn": SeparateAttention()})
    assert chosen(model, "qk") == {"attn.c_q.weight", "attn.c_k.weight"}
    assert len(chosen(model, "attention")) == 4


# ---------------------------------------------------------------------------------------------------- gated MLPs, SSM


def test_gated_mlps():
    model = nn.ModuleDict({"a": SwiGLU(), "b": SwiGLU(fused=True)})
    assert chosen(model, "mlp") == {
        "a.c_gate.weight",
        "a.c_fc.weight",
        "a.c_proj.weight",
        "b.gate_up_proj.weight[gate]",
        "b.gate_up_proj.weight[up]",
        "b.c_proj.weight",
    }
    assert by_label(model)["b.gate_up_proj.weight[up]"].rows == (10, 20)


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


MIXER = {"*.in_proj.weight": {"gate": 16, "x": 16, "B": 5, "C": 5, "dt": 4}}  # a class of ours: nobody else can know
IN_PROJ = {f"h.1.attn.in_proj.weight[{part}]" for part in ("gate", "x", "B", "C", "dt")}

TABLE = {  # parameter -> does FIRE apply?
    "wte.weight": False,
    "lm_head.weight": False,
    "resid_lambdas": False,
    "x0_lambdas": False,
    "h.0.attn.c_q.weight": True,
    "h.0.attn.c_k.weight": True,
    "h.0.attn.c_v.weight": True,
    "h.0.attn.c_proj.weight": True,
    "h.0.mlp.c_fc.weight": True,
    "h.0.mlp.c_proj.weight": True,
    "h.0.mlp.c_gate.weight": True,
    "h.1.mlp.c_fc.weight": True,
    "h.1.mlp.c_proj.weight": True,
    "h.1.mlp.c_gate.weight": True,
    "h.1.attn.in_proj.weight": True,
    "h.1.attn.out_proj.weight": True,
    "h.1.attn.A_log": False,
    "h.1.attn.dt_bias": False,
    "h.1.attn.D": False,
    "h.1.attn.conv1d.weight": False,
    "h.1.attn.conv1d.bias": False,
    "h.1.attn.B_bias": False,
    "h.1.attn.C_bias": False,
}


def test_the_parameter_table_of_a_hybrid_model():
    model = Hybrid()
    assert {name for name, _ in model.named_parameters()} == TABLE.keys()
    applies = {name for name, applies in TABLE.items() if applies}
    assert chosen(model, exclude=["lm_head"], blocks=MIXER) == applies - {"h.1.attn.in_proj.weight"} | IN_PROJ
    assert chosen(model, exclude=["lm_head"]) == applies - {"h.1.attn.in_proj.weight"}
    assert re.search("in_proj.weight is kept.*feeds a state-space mixer", resolve(model).warnings[0])


def test_attention_is_found_by_topology_not_by_the_name_attn():
    model = Hybrid()
    assert chosen(model, "attention") == {f"h.0.attn.c_{part}.weight" for part in ("q", "k", "v", "proj")}
    assert chosen(model, {"ssm": "project"}, blocks=MIXER) == {*IN_PROJ, "h.1.attn.out_proj.weight"}


# ---------------------------------------------------------------------------------- selectors and actions


def test_embeddings_and_heads_by_choice():
    model = Hybrid()
    assert "lm_head.weight" in chosen(model)
    assert "wte.weight" in chosen(model, include=[nn.Embedding])
    assert "wte.weight" in chosen(model, {"embedding": "project"})
    assert "lm_head.weight" not in chosen(model, {"linear": "project", "head": "keep"})


def test_select_by_module_type_pattern_and_parameter():
    model = Hybrid()
    everything = chosen(model, blocks=MIXER)
    mamba = {*IN_PROJ, "h.1.attn.out_proj.weight"}
    for selector in (Mamba, model.h[1].attn, "h.1.attn", "h.1.attn.*"):
        assert everything - chosen(model, exclude=[selector], blocks=MIXER) == mamba
    assert everything - chosen(model, exclude=[model.lm_head.weight], blocks=MIXER) == {"lm_head.weight"}
    assert chosen(model, "qk", include=["*.B_bias"]) == chosen(model, "qk") | {"h.1.attn.B_bias"}


def test_actions_by_group_and_pattern_later_ones_win():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 2))
    layout = {"conv": "project", "linear": "reinit", "4": "keep"}
    assert chosen(model, layout) == {"0.weight"}
    assert chosen(model, layout, action="reinit") == {"3.weight", "3.bias"}
    assert chosen(model, "dqn", action="reinit") == {"3.weight", "3.bias", "4.weight", "4.bias"}
    assert chosen(model, {"1": "reinit"}, action="reinit") == {"1.weight", "1.bias"}


def test_expert_stacks_and_transposed_storage():
    model = nn.Module()
    model.experts = nn.Parameter(torch.randn(3, 6, 4))  # (experts, d_in, d_out)
    entry = by_label(model, {"experts": "project"}, transposed=["experts"])["experts"]
    assert (entry.count, entry.shape, entry.positions) == (3, (4, 6), 1)
    fire_(model, layout=[entry], solver="exact", scale="orthogonal")
    for expert in model.experts.detach():
        torch.testing.assert_close(expert.mT @ expert, torch.eye(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"layout": "al"}, "layout='al'.*all, attention, qk"),
        ({"layout": {"conv": "projct"}}, r"layout\['conv'\]='projct'.*project, reinit, keep"),
        ({"layout": {"fc9": "keep"}}, "no parameter matches 'fc9'"),
        ({"include": ["*.bias"]}, "only biases"),
        ({"exclude": ["0.wieght"]}, "no parameter matches '0.wieght'; near it: 0.weight"),
        ({"exclude": [nn.LSTM]}, "no parameter matches"),
        ({"layout": 3}, "layout=3: give a preset's name"),
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


def test_presets_use_known_words():
    assert {group for preset in PRESETS.values() for group in preset} <= GROUPS.keys()


def test_wrappers_are_looked_through():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    plain = [entry.name for entry in resolve(model)]
    assert [entry.name for entry in resolve(torch.compile(model, backend="eager"))] == plain
    partly = nn.Sequential(torch.compile(model[0], backend="eager"), model[1], model[2])
    assert [entry.name for entry in resolve(partly)] == plain
