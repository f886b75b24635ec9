# ruff: noqa: C408
"""transformers: language models with every way to store fused projections and experts."""

from typing import Any

import pytest
import torch
from torch import nn

from fire_core import fire_
from fire_core.weights.layout import resolve
from tests.zoo.checks import Cuts, Fused, check_forward_pass, check_singular_values, share

transformers = pytest.importorskip("transformers", minversion="5.0")
pytestmark = pytest.mark.filterwarnings("ignore")

D = dict(
    vocab_size=48, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, pad_token_id=0
)
GQA = D | dict(num_key_value_heads=2)
WIDE = GQA | dict(head_dim=8)
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
EXPERTS = f"{MLP}.experts"
QKV = "q 32 k 32 v 32"
MLA = {
    "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8,
}  # fmt: skip
GATED = {f"{EXPERTS}.gate_up_proj": Fused("gate 24 up 24")}

# name -> (model type, configuration, the weights that are fused)
FAMILIES: dict[str, tuple[str, dict[str, Any], Cuts]] = {
    "gpt2": (
        "gpt2", dict(vocab_size=48, n_embd=32, n_layer=1, n_head=4, n_positions=16),
        {"transformer.h.0.attn.c_attn.weight": Fused(QKV, transposed=True)},
    ),
    "gpt_neox": ("gpt_neox", D, {"gpt_neox.layers.0.attention.query_key_value.weight": Fused("q 8 k 8 v 8", 4)}),
    "bloom": (
        "bloom", dict(vocab_size=48, hidden_size=32, n_layer=1, n_head=4),
        {"transformer.h.0.self_attention.query_key_value.weight": Fused("q 8 k 8 v 8", 4)},
    ),
    "falcon": ("falcon", D, {"transformer.h.0.self_attention.query_key_value.weight": Fused("q 32 k 8 v 8")}),
    "falcon_many": (
        "falcon", D | dict(multi_query=False),
        {"transformer.h.0.self_attention.query_key_value.weight": Fused("q 8 k 8 v 8", 4)},
    ),
    "falcon_grouped": (
        "falcon", D | dict(new_decoder_architecture=True, num_kv_heads=2),
        {"transformer.h.0.self_attention.query_key_value.weight": Fused("q 16 k 8 v 8", 2)},
    ),
    "codegen": (
        "codegen", dict(vocab_size=48, n_embd=32, n_layer=1, n_head=4, rotary_dim=4, n_positions=16),
        {"transformer.h.0.attn.qkv_proj.weight": Fused("q 8 v 8 k 8", 4)},
    ),
    "gpt_bigcode": (
        "gpt_bigcode", dict(vocab_size=48, n_embd=32, n_layer=1, n_head=4, n_positions=16),
        {"transformer.h.0.attn.c_attn.weight": Fused("q 32 k 8 v 8")},
    ),
    "gpt_bigcode_many": (
        "gpt_bigcode", dict(vocab_size=48, n_embd=32, n_layer=1, n_head=4, n_positions=16, multi_query=False),
        {"transformer.h.0.attn.c_attn.weight": Fused("q 8 k 8 v 8", 4)},
    ),
    "persimmon": ("persimmon", D, {f"{ATTENTION}.query_key_value.weight": Fused("q 8 k 8 v 8", 4)}),
    "mpt": (
        "mpt", dict(vocab_size=48, d_model=32, n_layers=1, n_heads=4, max_seq_len=16),
        {"transformer.blocks.0.attn.Wqkv.weight": Fused(QKV)},
    ),
    "phi3": (
        "phi3", GQA,
        {
            f"{ATTENTION}.qkv_proj.weight": Fused("q 32 k 16 v 16"),
            f"{MLP}.gate_up_proj.weight": Fused("gate 24 up 24"),
        },
    ),
    "modernbert_decoder": (
        "modernbert-decoder", D | dict(global_attn_every_n_layers=1),
        {"model.layers.0.mlp.Wi.weight": Fused("gate 24 up 24")},
    ),
    "glm4": ("glm4", WIDE, {f"{MLP}.gate_up_proj.weight": Fused("gate 24 up 24")}),
    "lfm2": (
        "lfm2", GQA | dict(layer_types=["conv"]),
        {"model.layers.0.conv.in_proj.weight": Fused("B 32 C 32 x 32")},
    ),
    "mamba": (
        "mamba", dict(vocab_size=48, hidden_size=32, num_hidden_layers=1, state_size=4),
        {
            "backbone.layers.0.mixer.in_proj.weight": Fused("x 64 gate 64"),
            "backbone.layers.0.mixer.x_proj.weight": Fused("dt 2 B 4 C 4"),
        },
    ),
    "mamba2": (
        "mamba2",
        dict(
            vocab_size=48, hidden_size=32, num_hidden_layers=1, state_size=4, num_heads=8, head_dim=8, n_groups=2,
            chunk_size=8,
        ),
        {"backbone.layers.0.mixer.in_proj.weight": Fused("gate 64 x 64 B 8 C 8 dt 8")},
    ),
    "qwen3_next": (
        "qwen3_next",
        WIDE
        | dict(
            num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4,
            linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=16,
        ),
        {
            "model.layers.0.linear_attn.in_proj_qkvz.weight": Fused("q 8 k 8 v 16 z 16", 2),
            "model.layers.0.linear_attn.in_proj_ba.weight": Fused("b 2 a 2", 2),
            "model.layers.1.self_attn.q_proj.weight": Fused("q 8 gate 8", 4),
            f"{EXPERTS}.gate_up_proj": Fused("gate 24 up 24"),
            "model.layers.1.mlp.experts.gate_up_proj": Fused("gate 24 up 24"),
        },
    ),
    "mixtral": ("mixtral", GQA | dict(num_local_experts=4), GATED),
    "qwen3_moe": ("qwen3_moe", WIDE | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24), GATED),
    "gpt_oss": (
        "gpt_oss", WIDE | dict(num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"]),
        {f"{EXPERTS}.gate_up_proj": Fused("gate 1 up 1", 24, transposed=True)},
    ),
    "llama4": (
        "llama4_text", WIDE | dict(num_local_experts=4, intermediate_size_mlp=24),
        {"model.layers.0.feed_forward.experts.gate_up_proj": Fused("gate 24 up 24", transposed=True)},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        D | MLA
        | dict(
            num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
            first_k_dense_replace=0, moe_intermediate_size=24,
        ),
        GATED
        | {
            f"{ATTENTION}.kv_b_proj.weight": Fused("k 8 v 8", 4),
            f"{ATTENTION}.kv_a_proj_with_mqa.weight": Fused("latent 8 rope 4", seen=False),
        },
    ),
    "deepseek_v4": (
        "deepseek_v4",
        D
        | dict(
            num_key_value_heads=1, head_dim=16, q_lora_rank=8, o_groups=4, o_lora_rank=16, hc_mult=2,
            layer_types=["sliding_attention"], mlp_layer_types=["moe"], n_routed_experts=4, num_local_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=24,
        ),
        GATED,
    ),
    "jamba": (
        "jamba",
        GQA
        | dict(
            num_hidden_layers=2, num_experts=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
            expert_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4,
        ),
        {
            "model.layers.0.mamba.in_proj.weight": Fused("x 64 gate 64"),
            "model.layers.0.mamba.x_proj.weight": Fused("dt 4 B 4 C 4", seen=False),  # a norm follows each
            "model.layers.1.feed_forward.experts.gate_up_proj": Fused("gate 24 up 24"),
        },
    ),
    "jetmoe": (
        "jetmoe", D | dict(num_key_value_heads=2, kv_channels=8, num_local_experts=4, num_experts_per_tok=2),
        {
            f"{ATTENTION.replace('self_attn', 'self_attention')}.kv_proj.weight": Fused("k 16 v 16"),
            f"{MLP}.input_linear.weight": Fused("gate 24 up 24"),
        },
    ),
    "llama": ("llama", GQA, {}),
}  # fmt: skip

# The share of numbers in projected matrices at least: experts are most of a mixture.
MIXTURES = {"mixtral": 0.8, "qwen3_moe": 0.8, "gpt_oss": 0.8, "llama4": 0.8, "deepseek_v3": 0.8, "jamba": 0.8}


def build(kind: str, settings: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **settings)
    return transformers.AutoModelForCausalLM.from_config(config)


def tokens() -> dict[str, Any]:
    ids = torch.randint(1, 48, (2, 9), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "use_cache": False}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name):
    kind, settings, cuts = FAMILIES[name]
    model = build(kind, settings)
    check_forward_pass(model, tokens(), cuts)
    check_singular_values(model, cuts)


def test_a_grouped_linear_layer_is_a_matrix_for_each_group():
    kind, settings, _ = FAMILIES["deepseek_v4"]
    model = build(kind, settings)
    fire_(model, solver="exact")
    groups = model.model.layers[0].self_attn.o_a_proj.weight.detach().unflatten(0, (4, 16))  # (groups, 16, 16)
    torch.testing.assert_close(torch.linalg.svdvals(groups), torch.ones(4, 16), rtol=2e-3, atol=0)


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_reached_and_routers_kept(name):
    kind, settings, _ = FAMILIES[name]
    model = build(kind, settings)
    assert share(model) > MIXTURES[name]
    routers = [entry for entry in resolve(model) if entry.role == "router" and entry.kind == "matrix"]
    assert routers
    assert all(entry.action == "keep" and "router" in entry.reason for entry in routers)


@pytest.mark.parametrize("name", ["gpt_neox", "bloom", "falcon"])
def test_qk_reaches_interleaved_projections(name):
    kind, settings, cuts = FAMILIES[name]
    taken = {entry.label for entry in resolve(build(kind, settings), "qk") if entry.action == "project"}
    assert taken == {f"{weight}[{block}]" for weight in cuts for block in "qk"}
