"""Fused weights of transformers, timm, torchvision, x-transformers, mamba_ssm and this project's `language`, as data.

A rule belongs to the class whose `forward` runs: by its name or, where many use the name, by package, file and name
(`timm.tiny_vit.Attention`). Nothing is imported. Each rule is checked against shapes and attributes;
`tests/zoo` checks it against a forward pass of the model.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, cast

from torch import nn

from fire_core.weights.fused import Cut, Misfit, Rule, equal, fitting, number, sized, whole

QKV, KV, QK, GATED = equal("q k v"), equal("k v"), equal("q k"), equal("gate up")


def _classes(names: str, **rules: Rule) -> dict[str, dict[str, Rule]]:
    return dict.fromkeys(names.split(), rules)


def _in(package: str, names: str, **rules: Rule) -> dict[str, dict[str, Rule]]:
    return {f"{package}.{name}": rules for name in names.split()}


def _gqa(heads: str, kv_heads: str, width: str = "head_dim") -> Rule:
    """[q][k][v] with fewer key and value heads than query heads."""

    def rule(module: Any, rows: int) -> Cut:
        q, kv, d = number(module, heads), number(module, kv_heads), number(module, width)
        return fitting((("q", q * d), ("k", kv * d), ("v", kv * d)), rows)

    return rule


def _falcon(module: Any, rows: int) -> Cut:
    heads, d = number(module, "num_heads"), number(module, "head_dim")
    if module.new_decoder_architecture:  # groups of query heads, each followed by its key and its value
        groups = number(module, "num_kv_heads")
        return fitting((("q", heads // groups * d), ("k", d), ("v", d)), rows, groups)
    if module.multi_query:
        return fitting((("q", heads * d), ("k", d), ("v", d)), rows)
    return fitting((("q", d), ("k", d), ("v", d)), rows, heads)


def _big_code(module: Any, rows: int) -> Cut:
    if getattr(module, "is_cross_attention", False):
        raise Misfit("its cross-attention splits by the width of a head")
    if module.multi_query:
        return sized("q k v", "embed_dim", "kv_dim", "kv_dim")(module, rows)
    return equal("q k v", "num_heads")(module, rows)


def _gpt2(module: Any, rows: int) -> Cut:
    return (KV if getattr(module, "is_cross_attention", False) else QKV)(module, rows)


def _mamba2(module: Any, rows: int) -> Cut:
    inner, heads = number(module, "intermediate_size"), number(module, "num_heads")
    state = number(module, "n_groups") * number(module, "ssm_state_size")
    return fitting((("gate", inner), ("x", inner), ("B", state), ("C", state), ("dt", heads)), rows)


def _mamba_ssm2(module: Any, rows: int) -> Cut:
    inner, state = number(module, "d_inner"), number(module, "ngroups") * number(module, "d_state")
    return fitting((("gate", inner), ("x", inner), ("B", state), ("C", state), ("dt", number(module, "nheads"))), rows)


def _delta_net(module: Any, rows: int) -> Cut:
    """Qwen3-Next's in_proj_qkvz: for each key head its query, key, and the values and gates of its value heads."""
    k_heads, d = number(module, "num_k_heads"), number(module, "head_k_dim")
    values = number(module, "num_v_heads") // k_heads * number(module, "head_v_dim")
    return fitting((("q", d), ("k", d), ("v", values), ("z", values)), rows, k_heads)


def _focal(module: Any, rows: int) -> Cut:
    gates = number(module, "focal_level") + 1
    return fitting((("q", (rows - gates) // 2), ("context", (rows - gates) // 2), ("gates", gates)), rows)


def _gc_vit(module: Any, rows: int) -> Cut:
    return (KV if module.use_global else QKV)(module, rows)


def _head_first(module: Any, rows: int) -> Cut:
    return (equal("q k v", "num_heads") if module.head_first else QKV)(module, rows)


def _halo(module: Any, rows: int) -> Cut:
    return sized("k v", "dim_head_qk", "dim_head_v", repeats="num_heads")(module, rows)


def _lambda(module: Any, rows: int) -> Cut:
    d = number(module, "dim_qk")
    return fitting((("q", number(module, "num_heads") * d), ("k", d), ("v", number(module, "dim_v"))), rows)


def _lite_mla(module: Any, rows: int) -> Cut:
    d = number(module, "dim")
    return fitting((("q", d), ("k", d), ("v", d)), rows, rows // (3 * d))


def _single_head(module: Any, rows: int) -> Cut:
    """mobilevit's separable attention: one row of queries."""
    d = number(module, "embed_dim")
    return fitting((("q", 1), ("k", d), ("v", d)), rows)


def _expert_gate_up(module: Any, rows: int) -> Cut:
    """transformers' experts say themselves how they store gate and up: side by side or every other row."""
    pattern = GATED(module, rows) if module.is_concatenated else equal("gate up", rows // 2)(module, rows)
    return Cut(pattern.blocks, pattern.repeats, bool(module.is_transposed), role="mlp")


def _expert(module: Any, rows: int) -> Cut:
    return Cut((("", rows),), transposed=bool(module.is_transposed), role="mlp")


def _llama4_gate_up(module: Any, rows: int) -> Cut:
    return Cut(GATED(module, rows).blocks, transposed=True, role="mlp")


def _straight_gate_up(module: Any, rows: int) -> Cut:
    return Cut(GATED(module, rows).blocks, role="mlp")


_MLA = {
    "kv_b_proj": sized("k v", "qk_nope_head_dim", "v_head_dim", repeats="num_heads"),
    "kv_a_proj_with_mqa": sized("latent rope", "kv_lora_rank", "qk_rope_head_dim"),
}

TRANSFORMERS: dict[str, dict[str, Rule]] = {
    **_classes("GPTNeoXAttention", query_key_value=equal("q k v", "num_attention_heads")),
    **_classes("GPTNeoXJapaneseAttention", query_key_value=equal("q k v", "num_attention_heads")),
    **_classes("BloomAttention PersimmonAttention", query_key_value=equal("q k v", "num_heads")),
    **_classes("FalconAttention FalconFlashAttention2", query_key_value=_falcon),
    **_classes("CodeGenAttention", qkv_proj=equal("q v k", 4)),
    **_classes("GPTBigCodeAttention", c_attn=_big_code),
    **_classes("MiniMaxLightningAttention", qkv_proj=equal("q k v", "num_attention_heads")),
    **_classes("DisentangledSelfAttention", in_proj=equal("q k v", "num_attention_heads")),
    **_classes("EsmFoldSelfAttention", proj=equal("q k v", "num_heads")),
    **_classes("GPT2Attention DecisionTransformerGPT2Attention ImageGPTAttention", c_attn=_gpt2),
    **_classes("transformers.modeling_openai.Attention", c_attn=QKV),
    **_classes("BarkSelfAttention BarkSelfFlashAttention2", att_proj=QKV),
    **_classes("MptAttention ModernBertAttention", Wqkv=QKV),
    **_classes("LayoutLMv2SelfAttention", qkv_linear=QKV),
    **_classes("DbrxAttention", Wqkv=_gqa("num_heads", "num_key_value_heads")),
    **_classes("Phi3Attention Phi4MultimodalAttention", qkv_proj=_gqa("num_attention_heads", "num_key_value_heads")),
    **_classes("Exaone4_5_VisionAttention", qkv=sized("q k v", "q_dim", "kv_dim", "kv_dim")),
    **_classes("JetMoeAttention", kv_proj=KV),
    **_classes(
        "GraniteSpeechConformerAttention GraniteSpeechPlusConformerAttention EvollaSequenceCompressorAttention",
        to_kv=KV,
    ),
    **_classes(
        "Blip2Attention BlipAttention CohereCompassVisionAttention DeepseekOcr2SamVisionAttention "
        "Dots3NoteVisionAttention Ernie4_5_VLMoeVisionAttention Florence2VisionChannelAttention "
        "Florence2VisionWindowAttention Glm4vMoeVisionAttention Glm4vVisionAttention Glm5NextVisionAttention "
        "GlmImageVisionAttention GlmOcrVisionAttention GotOcr2VisionAttention HieraMaskUnitAttention "
        "InstructBlipAttention InstructBlipVideoAttention MgpstrAttention PPFormulaNetVisionAttention "
        "PPOCRV5MobileRecAttention PPOCRV5ServerRecAttention PPOCRV6SmallRecAttention Qwen2_5_VLVisionAttention "
        "Qwen3OmniMoeVisionAttention Qwen3VLMoeVisionAttention Qwen3VLVisionAttention Qwen3_5MoeVisionAttention "
        "Qwen3_5VisionAttention Qwen4ExpVisionAttention SLANeXtVisionAttention Sam2MultiScaleAttention "
        "SamHQVisionAttention SamVisionAttention SegGptAttention TimesformerSelfAttention "
        "UnlimitedOcrSamVisionAttention transformers.modeling_qwen2_vl.VisionAttention VitDetAttention",
        qkv=QKV,
    ),
    # A query and a gate for each head.
    **_classes(
        "Qwen3NextAttention Qwen3_5Attention Qwen3_5MoeAttention Qwen4ExpTextAttention",
        q_proj=sized("q gate", "head_dim", "head_dim", repeats="num_attention_heads"),
    ),
    **_classes(
        "AXK1Attention AXK2Attention BailingHybridAttention DeepseekV2Attention DeepseekV32Attention "
        "DeepseekV3Attention Dots3NoteTextAttention Glm4MoeLiteAttention Glm5NextTextAttention GlmMoeDsaAttention "
        "HYV4Attention KimiLinearAttention LongcatFlashMLA MiniCPM3Attention Mistral4Attention "
        "MistralLarge4TextAttention YoutuAttention",
        **_MLA,
    ),
    # Gated MLPs.
    **_classes(
        "DiaMLP Dots3NoteAudioMLP EsmFold2SwiGLU Glm4MLP Glm4vTextMLP GlmImageTextMLP GlmMLP GlmOcrTextMLP "
        "MiniMaxM3VLDenseMLP Phi3MLP Phi4MultimodalAudioMLP Phi4MultimodalMLP Zamba2MLP",
        gate_up_proj=GATED,
    ),
    **_classes("GraniteMoeHybridMLP GraniteMoeSWAMLP GraniteMoeSharedMLP", input_linear=GATED),
    **_classes("ModernBertMLP ModernBertDecoderMLP", Wi=GATED),
    **_classes(
        "MoonshineDecoderMLP MoonshineStreamingDecoderMLP MoshiGatingMLP KyutaiSpeechToTextGatingMLP", fc1=GATED
    ),
    **_classes("ClvpGatedLinearUnit", proj=GATED),
    **_classes(
        "SeamlessM4TConformerConvolutionModule SeamlessM4Tv2ConformerConvolutionModule "
        "Wav2Vec2BertConvolutionModule Wav2Vec2ConformerConvolutionModule",
        pointwise_conv1=equal("value gate"),
    ),
    # State-space and linear-attention mixers, gated convolutions.
    **_classes(
        "MambaMixer FalconMambaMixer JambaMambaMixer",
        in_proj=equal("x gate"),
        x_proj=sized("dt B C", "time_step_rank", "ssm_state_size", "ssm_state_size"),
    ),
    **_classes("ZambaMambaMixer", in_proj=lambda module, rows: equal("x gate", rows // 2)(module, rows)),
    **_classes("Mamba2Mixer NemotronHMamba2Mixer BambaMixer FalconH1Mixer", in_proj=_mamba2),
    **_classes("GraniteMoeHybridMambaLayer Zamba2MambaMixer", in_proj=_mamba2),
    **_classes(
        "Qwen3NextGatedDeltaNet",
        in_proj_qkvz=_delta_net,
        in_proj_ba=equal("b a", "num_k_heads"),
    ),
    **_classes(
        "Qwen3_5GatedDeltaNet Qwen3_5MoeGatedDeltaNet Qwen4ExpTextGatedDeltaNet",
        in_proj_qkv=sized("q k v", "key_dim", "key_dim", "value_dim"),
    ),
    **_classes("Lfm2ShortConv Lfm2MoeShortConv Lfm3ShortConv Lfm3VlVisionShortConv", in_proj=equal("B C x")),
    **_classes("FocalNetModulation", projection_in=_focal),
    # Raw expert parameters.
    **_classes("Llama4TextExperts", gate_up_proj=_llama4_gate_up, down_proj=whole(transposed=True, role="mlp")),
    **_classes(
        "InklingSharedExperts", gate_proj=whole(role="mlp"), up_proj=whole(role="mlp"), down_proj=whole(role="mlp")
    ),
    **_classes("LongcatFlashExperts Step3p7Experts", gate_up_proj=_straight_gate_up, down_proj=whole(role="mlp")),
    **_classes("JetMoeMoE", input_linear=_straight_gate_up, output_linear=whole(role="mlp")),
    **_classes("JetMoeMoA", input_linear=whole(role="q"), output_linear=whole(role="attention_out")),
    **_classes(
        "DbrxExpertGLU",
        w1=whole(groups="moe_num_experts", role="mlp"),
        v1=whole(groups="moe_num_experts", role="mlp"),
        w2=whole(transposed=True, groups="moe_num_experts", role="mlp"),
    ),
}
# transformers' experts carry how they are stored: `use_experts_implementation` writes it on them.
_EXPERTS: dict[str, Rule] = {"gate_up_proj": _expert_gate_up, "up_proj": _expert, "down_proj": _expert}

TIMM: dict[str, dict[str, Rule]] = {
    **_in(
        "timm",
        "metaformer.Attention vision_transformer_sam.Attention convit.MHSA volo.Attention "
        " eva.EvaAttention swin_transformer.WindowAttention twins.LocallyGroupedAttn "
        "edgenext.CrossCovarianceAttn visformer.Attention coat.FactorAttnConvRelPosEnc "
        "hiera.MaskUnitAttention beit.Attention nest.Attention fastvit.Attention "
        "swin_transformer_v2_cr.WindowMultiHeadAttention cait.TalkingHeadAttn davit.ChannelAttention "
        "davit.ChannelAttentionV2 davit.WindowAttention hieradet_sam2.MultiScaleAttention "
        "mvitv2.MultiScaleAttention vision_transformer_relpos.RelPosAttention xcit.XCA "
        "swin_transformer_v2.WindowAttention attention.Attention attention.AttentionRope "
        "attention_pool2d.RotAttentionPool2d attention_pool2d.AttentionPool2d "
        "diff_attention.DiffAttention",
        qkv=QKV,
    ),
    **_in(
        "torchvision",
        "swin_transformer.ShiftedWindowAttention swin_transformer.ShiftedWindowAttentionV2 mvit.MultiscaleAttention",
        qkv=QKV,
    ),
    **_in("torchvision", "maxvit.RelativePositionalMultiHeadAttention", to_qkv=QKV),
    **_in("timm", "convit.GPSA tnt.Attention", qk=QK),
    **_in(
        "timm",
        "volo.ClassAttention twins.GlobalSubSampleAttn pvt_v2.Attention attention_pool.AttentionPoolLatent",
        kv=KV,
    ),
    **_in("timm", "gcvit.WindowAttentionGlobal", qkv=_gc_vit),
    **_in("timm", "tiny_vit.Attention", qkv=sized("q k v", "key_dim", "key_dim", "val_dim", repeats="num_heads")),
    **_in(
        "timm", "efficientformer.Attention", qkv=sized("q k v", "key_dim", "key_dim", "val_dim", repeats="num_heads")
    ),
    **_in("timm", "levit.Attention", qkv=sized("q k v", "key_dim", "key_dim", "val_dim", repeats="num_heads")),
    **_in("timm", "levit.AttentionDownsample", kv=sized("k v", "key_dim", "val_dim", repeats="num_heads")),
    **_in("timm", "efficientvit_msra.CascadedGroupAttention", qkvs=sized("q k v", "key_dim", "key_dim", "val_dim")),
    **_in(
        "timm",
        "efficientvit_mit.LiteMLA",
        qkv=_lite_mla,
    ),
    **_in("timm", "maxxvit.Attention2d maxxvit.AttentionCl attention2d.Attention2d", qkv=_head_first),
    **_in("timm", "bottleneck_attn.BottleneckAttn", qkv=sized("q k v", "dim_out_qk", "dim_out_qk", "dim_out_v")),
    **_in("timm", "halo_attn.HaloAttn", kv=_halo),
    **_in("timm", "lambda_layer.LambdaLayer", qkv=_lambda),
    **_in("timm", "shvit.SHSA", qkv=sized("q k v", "qk_dim", "qk_dim", "pdim")),
    **_in("timm", "mobilevit.LinearSelfAttention", qkv_proj=_single_head),
    **_in("timm", "mlp.GluMlp", fc1=GATED),
    **_in("timm", "mambaout.GatedConvBlock", fc1=equal("gate value")),
    **_in("x_transformers", "x_transformers.GLU", proj=equal("up gate")),
    **_in(
        "mamba_ssm",
        "mamba_simple.Mamba",
        in_proj=equal("x gate"),
        x_proj=sized("dt B C", "dt_rank", "d_state", "d_state"),
    ),
    **_in("mamba_ssm", "mamba2.Mamba2", in_proj=_mamba_ssm2),
    **_in("language", "model.Attention", c_attn=_gqa("n_head", "n_kv_head")),
}

_TABLE = TRANSFORMERS | TIMM
_GATES = {"LSTM": "i f g o", "GRU": "r z n", "LSTMCell": "i f g o", "GRUCell": "r z n"}


def rule_for(module: nn.Module, leaf: str) -> Rule | None:
    """The rule for a module's weight, or for the layer of that name in it; None for one that is not known."""
    rules = _rules_of(cast(Hashable, type(module)))
    if rules is _EXPERTS and not hasattr(module, "is_concatenated"):
        return None
    if rules is not None:
        return rules.get(leaf)
    if isinstance(module, nn.MultiheadAttention):
        return QKV if leaf.startswith("in_proj_") else None
    return recurrent(module, leaf)


@lru_cache(maxsize=4096)
def _rules_of(kind: Hashable) -> dict[str, Rule] | None:
    assert isinstance(kind, type)
    owner = next((c for c in kind.__mro__ if "forward" in vars(c)), nn.Module)  # a subclass may read its rows anew
    parts = owner.__module__.split(".")
    rules = _TABLE.get(f"{parts[0]}.{parts[-1]}.{owner.__name__}") or _TABLE.get(owner.__name__)
    return _EXPERTS if rules is None and owner.__name__.endswith("Experts") else rules


def recurrent(module: nn.Module, leaf: str) -> Rule | None:
    """Gates of torch's recurrent layers: each of `weight_ih` and `weight_hh` holds one matrix for each gate."""
    if not isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return None
    names = _GATES.get(getattr(module, "mode", type(module).__name__))
    if names is None or leaf.startswith("weight_hr"):  # a plain RNN; the projection of an LSTM's output
        return whole()
    return equal(names)
