"""Fused weights of transformers, timm, torchvision, x-transformers and mamba_ssm.

Two kinds of knowledge. A rule by name holds in the packages whose families the tests compare with their forward passes
(`tests/zoo`): a `qkv` with three times as many rows as columns is q, k, v. A rule by class goes before it, for whatever
lies otherwise; it belongs to the class whose `forward` runs, by its name or, where many use the name, by package, file
and name (`timm.tiny_vit.Attention`). Nothing is imported. Each rule is checked against shapes and attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from fire_core.weights.fused import Cut, Misfit, Rule, equal, fitting, number, sized, whole
from fire_core.weights.topology import HOLDS, Use, width

Known = TypeVar("Known")
QKV, KV, GATED = equal("q k v"), equal("k v"), equal("gate up")


def _falcon(module: Any, rows: int) -> Cut:
    if module.new_decoder_architecture:  # groups of query heads, each followed by its key and its value
        queries = "num_heads / num_kv_heads * head_dim"
        return sized("q k v", queries, "head_dim", "head_dim", repeats="num_kv_heads")(module, rows)
    if module.multi_query:
        return sized("q k v", "num_heads * head_dim", "head_dim", "head_dim")(module, rows)
    return equal("q k v", "num_heads")(module, rows)


def _big_code(module: Any, rows: int) -> Cut:
    if getattr(module, "is_cross_attention", False):
        raise Misfit("its cross-attention splits by the width of a head")
    if module.multi_query:
        return sized("q k v", "embed_dim", "kv_dim", "kv_dim")(module, rows)
    return equal("q k v", "num_heads")(module, rows)


def _gpt2(module: Any, rows: int) -> Cut:
    return (KV if getattr(module, "is_cross_attention", False) else QKV)(module, rows)


def _mamba2(inner: str, states: str, heads: str) -> Rule:
    return sized("gate x B C dt", inner, inner, states, states, heads)


def _focal(module: Any, rows: int) -> Cut:
    gates = number(module, "focal_level") + 1
    return fitting((("q", (rows - gates) // 2), ("context", (rows - gates) // 2), ("gates", gates)), rows)


def _gc_vit(module: Any, rows: int) -> Cut:
    return (KV if module.use_global else QKV)(module, rows)


def _head_first(module: Any, rows: int) -> Cut:
    return (equal("q k v", "num_heads") if module.head_first else QKV)(module, rows)


def _lite_mla(module: Any, rows: int) -> Cut:
    return equal("q k v", rows // (3 * number(module, "dim")))(module, rows)


def _expert_gate_up(module: Any, rows: int) -> Cut:
    """transformers' experts say themselves how they store gate and up: side by side or every other row."""
    pattern = GATED(module, rows) if module.is_concatenated else equal("gate up", rows // 2)(module, rows)
    return Cut(pattern.blocks, pattern.repeats, bool(module.is_transposed), role="mlp")


def _expert(module: Any, rows: int) -> Cut:
    return Cut((("", rows),), transposed=bool(module.is_transposed), role="mlp")


def _gated_experts(transposed: bool = False) -> Rule:
    return lambda module, rows: Cut(GATED(module, rows).blocks, transposed=transposed, role="mlp")


# Packages in which a name says how a layer is cut, unless its class is in the table below.
PACKAGES = ("transformers", "timm", "torchvision")
STRAIGHT = ("qkv", "Wqkv", "kv", "to_kv", "qk")  # of equal parts, each as high as the weight is wide
BY_NAME = {
    "gate_up_proj": GATED,
    "Wi": GATED,
    "kv_b_proj": sized("k v", "qk_nope_head_dim", "v_head_dim", repeats="num_heads"),
    "kv_a_proj_with_mqa": sized("latent rope", "kv_lora_rank", "qk_rope_head_dim"),
}

_KEYS = "num_key_value_heads * head_dim"
_BY_HEAD = sized("q k v", "key_dim", "key_dim", "val_dim", repeats="num_heads")
_VALUES = "num_v_heads / num_k_heads * head_v_dim"  # of the value heads that go with one key head
_EXPERT, _OUT = whole(role="mlp"), whole(role="attention_out")
# Classes, and what their layers or raw parameters of these names hold.
CLASSES: list[tuple[str, dict[str, Rule]]] = [
    # Attention.
    ("GPTNeoXAttention GPTNeoXJapaneseAttention", {"query_key_value": equal("q k v", "num_attention_heads")}),
    ("BloomAttention PersimmonAttention", {"query_key_value": equal("q k v", "num_heads")}),
    ("FalconAttention FalconFlashAttention2", {"query_key_value": _falcon}),
    ("CodeGenAttention", {"qkv_proj": equal("q v k", 4)}),
    ("GPTBigCodeAttention", {"c_attn": _big_code}),
    ("MiniMaxLightningAttention", {"qkv_proj": equal("q k v", "num_attention_heads")}),
    ("DisentangledSelfAttention", {"in_proj": equal("q k v", "num_attention_heads")}),
    ("EsmFoldSelfAttention", {"proj": equal("q k v", "num_heads")}),
    ("GPT2Attention DecisionTransformerGPT2Attention ImageGPTAttention", {"c_attn": _gpt2}),
    ("transformers.modeling_openai.Attention", {"c_attn": QKV}),
    ("BarkSelfAttention BarkSelfFlashAttention2", {"att_proj": QKV}),
    ("LayoutLMv2SelfAttention", {"qkv_linear": QKV}),
    ("DbrxAttention", {"Wqkv": sized("q k v", "num_heads * head_dim", _KEYS, _KEYS)}),
    (
        "Phi3Attention Phi4MultimodalAttention",
        {"qkv_proj": sized("q k v", "num_attention_heads * head_dim", _KEYS, _KEYS)},
    ),
    ("Exaone4_5_VisionAttention", {"qkv": sized("q k v", "q_dim", "kv_dim", "kv_dim")}),
    ("JetMoeAttention", {"kv_proj": KV}),
    ("torchvision.maxvit.RelativePositionalMultiHeadAttention", {"to_qkv": QKV}),
    (  # wider than their input, or with a pooled query
        "torchvision.mvit.MultiscaleAttention timm.mvitv2.MultiScaleAttention timm.hiera.MaskUnitAttention "
        "timm.hieradet_sam2.MultiScaleAttention HieraMaskUnitAttention Sam2MultiScaleAttention",
        {"qkv": QKV},
    ),
    ("timm.gcvit.WindowAttentionGlobal", {"qkv": _gc_vit}),
    ("timm.tiny_vit.Attention timm.efficientformer.Attention timm.levit.Attention", {"qkv": _BY_HEAD}),
    ("timm.levit.AttentionDownsample", {"kv": sized("k v", "key_dim", "val_dim", repeats="num_heads")}),
    ("timm.efficientvit_msra.CascadedGroupAttention", {"qkvs": sized("q k v", "key_dim", "key_dim", "val_dim")}),
    ("timm.efficientvit_mit.LiteMLA", {"qkv": _lite_mla}),
    ("timm.maxxvit.Attention2d timm.maxxvit.AttentionCl timm.attention2d.Attention2d", {"qkv": _head_first}),
    ("timm.bottleneck_attn.BottleneckAttn", {"qkv": sized("q k v", "dim_out_qk", "dim_out_qk", "dim_out_v")}),
    ("timm.halo_attn.HaloAttn", {"kv": sized("k v", "dim_head_qk", "dim_head_v", repeats="num_heads")}),
    ("timm.lambda_layer.LambdaLayer", {"qkv": sized("q k v", "num_heads * dim_qk", "dim_qk", "dim_v")}),
    ("timm.shvit.SHSA", {"qkv": sized("q k v", "qk_dim", "qk_dim", "pdim")}),
    ("timm.mobilevit.LinearSelfAttention", {"qkv_proj": sized("q k v", 1, "embed_dim", "embed_dim")}),
    (  # a query and a gate for each head
        "Qwen3NextAttention Qwen3_5Attention Qwen3_5MoeAttention Qwen4ExpTextAttention",
        {"q_proj": sized("q gate", "head_dim", "head_dim", repeats="num_attention_heads")},
    ),
    # Gated layers.
    ("GraniteMoeHybridMLP GraniteMoeSWAMLP GraniteMoeSharedMLP", {"input_linear": GATED}),
    ("MoonshineDecoderMLP MoonshineStreamingDecoderMLP MoshiGatingMLP KyutaiSpeechToTextGatingMLP", {"fc1": GATED}),
    ("timm.mlp.GluMlp", {"fc1": GATED}),
    ("timm.mambaout.GatedConvBlock", {"fc1": equal("gate value")}),
    ("ClvpGatedLinearUnit", {"proj": GATED}),
    ("x_transformers.x_transformers.GLU", {"proj": equal("up gate")}),
    (
        "SeamlessM4TConformerConvolutionModule SeamlessM4Tv2ConformerConvolutionModule "
        "Wav2Vec2BertConvolutionModule Wav2Vec2ConformerConvolutionModule",
        {"pointwise_conv1": equal("value gate")},
    ),
    # State-space and linear-attention mixers.
    (
        "MambaMixer FalconMambaMixer JambaMambaMixer",
        {
            "in_proj": equal("x gate"),
            "x_proj": sized("dt B C", "time_step_rank", "ssm_state_size", "ssm_state_size"),
        },
    ),
    (
        "mamba_ssm.mamba_simple.Mamba",
        {"in_proj": equal("x gate"), "x_proj": sized("dt B C", "dt_rank", "d_state", "d_state")},
    ),
    ("ZambaMambaMixer", {"in_proj": lambda module, rows: equal("x gate", rows // 2)(module, rows)}),
    (
        "Mamba2Mixer NemotronHMamba2Mixer BambaMixer FalconH1Mixer GraniteMoeHybridMambaLayer Zamba2MambaMixer",
        {"in_proj": _mamba2("intermediate_size", "n_groups * ssm_state_size", "num_heads")},
    ),
    ("mamba_ssm.mamba2.Mamba2", {"in_proj": _mamba2("d_inner", "ngroups * d_state", "nheads")}),
    (
        "Qwen3NextGatedDeltaNet",
        {
            "in_proj_qkvz": sized("q k v z", "head_k_dim", "head_k_dim", _VALUES, _VALUES, repeats="num_k_heads"),
            "in_proj_ba": equal("b a", "num_k_heads"),
        },
    ),
    (
        "Qwen3_5GatedDeltaNet Qwen3_5MoeGatedDeltaNet Qwen4ExpTextGatedDeltaNet",
        {"in_proj_qkv": sized("q k v", "key_dim", "key_dim", "value_dim")},
    ),
    ("Lfm2ShortConv Lfm2MoeShortConv Lfm3ShortConv Lfm3VlVisionShortConv", {"in_proj": equal("B C x")}),
    ("FocalNetModulation", {"projection_in": _focal}),
    # Raw expert parameters.
    ("Llama4TextExperts", {"gate_up_proj": _gated_experts(True), "down_proj": whole(transposed=True, role="mlp")}),
    ("InklingSharedExperts", {"gate_proj": _EXPERT, "up_proj": _EXPERT, "down_proj": _EXPERT}),
    ("LongcatFlashExperts Step3p7Experts", {"gate_up_proj": _gated_experts(), "down_proj": _EXPERT}),
    ("JetMoeMoE", {"input_linear": _gated_experts(), "output_linear": _EXPERT}),
    ("JetMoeMoA", {"input_linear": whole(role="q"), "output_linear": _OUT}),
    (
        "DbrxExpertGLU",
        {
            "w1": whole(groups="moe_num_experts", role="mlp"),
            "v1": whole(groups="moe_num_experts", role="mlp"),
            "w2": whole(transposed=True, groups="moe_num_experts", role="mlp"),
        },
    ),
]
TABLE = {name: rules for names, rules in CLASSES for name in names.split()}
# transformers' experts carry how they are stored: `use_experts_implementation` writes it on them.
_EXPERTS: dict[str, Rule] = {"gate_up_proj": _expert_gate_up, "up_proj": _expert, "down_proj": _expert}
_GATES = {"LSTM": "i f g o", "GRU": "r z n", "LSTMCell": "i f g o", "GRUCell": "r z n"}


def known_cut(use: Use, parameter: Tensor, rows: int) -> Cut | None:
    """What the rules say of a parameter; None where none knows it.

    Args:
        use: where the parameter sits.
        parameter: a weight, a bias or a raw parameter.
        rows: d_out of the matrix that it is, or belongs to.

    Raises:
        Misfit: its class is known with another shape.
    """
    for module, leaf in _levels(use, parameter):
        rule = _rule_for(module, leaf, rows, 0 if use.is_raw else width(use.owner))
        if rule is not None:
            try:
                return _raw(rule, module, parameter) if use.is_raw and parameter.ndim > 1 else rule(module, rows)
            except (Misfit, AttributeError) as misfit:
                raise Misfit(f"the layout known for {type(module).__name__} does not fit: {misfit}") from misfit
    return equal("value gate")(None, rows) if _feeds_glu(use) and rows % 2 == 0 else None


def _levels(use: Use, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """The modules that may know a parameter, upwards, each with the name by which it does: a layer may sit in a wrapper
    with its norm, or in a list."""
    names = use.name.split(".")
    levels = range(1, 4) if not use.is_raw else range(2 if parameter.ndim > 1 else 1)
    return [(use.path[-1 - up], names[-1 - up]) for up in levels[: len(use.path) - levels.start]]


def _rule_for(module: nn.Module, leaf: str, rows: int, columns: int) -> Rule | None:
    """The rule for a module's own parameter, or for the layer of that name in it; None where none is known."""
    owner = forward_class(module)
    rules = look_up(TABLE, module)
    if rules is None and owner.__name__.endswith("Experts") and hasattr(module, "is_concatenated"):
        rules = _EXPERTS
    if rules is not None and leaf in rules:
        return rules[leaf]
    if isinstance(module, nn.MultiheadAttention):
        return QKV if leaf.startswith("in_proj_") else None
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):  # one matrix for each gate of `weight_ih` and of `weight_hh`
        gates = _GATES.get(getattr(module, "mode", type(module).__name__))
        return equal(gates) if gates and not leaf.startswith("weight_hr") else whole()
    if columns > 1 and owner.__module__.partition(".")[0] in PACKAGES:  # of one column nothing is left but signs
        if leaf in STRAIGHT and rows == len(HOLDS[leaf]) * columns:
            return equal(" ".join(HOLDS[leaf]))
        return BY_NAME.get(leaf)
    return None


def forward_class(module: nn.Module) -> type:
    """The class whose `forward` runs: a subclass with its own may read its rows anew."""
    return next((c for c in type(module).__mro__ if "forward" in vars(c)), nn.Module)


def look_up(table: Mapping[str, Known], module: nn.Module) -> Known | None:
    """What a table of classes holds for a module."""
    owner = forward_class(module)
    parts = owner.__module__.split(".")
    return table.get(f"{parts[0]}.{parts[-1]}.{owner.__name__}") or table.get(owner.__name__)


def _raw(rule: Rule, module: nn.Module, parameter: Tensor) -> Cut:
    """A raw parameter's cut: the rule says which of the last two dimensions is d_out."""
    misfit = Misfit("")
    for rows, transposed in ((parameter.shape[-2], False), (parameter.shape[-1], True)):
        try:
            cut = rule(module, rows)
        except Misfit as error:
            misfit = error
            continue
        if cut.transposed == transposed:
            return cut
    raise misfit


def _feeds_glu(use: Use) -> bool:
    """Whether torch's own GLU, which takes two halves, comes right after the layer in a Sequential."""
    if len(use.path) < 2 or not isinstance(use.path[-2], nn.Sequential):
        return False
    layers = list(use.path[-2].children())
    at = next((i for i, layer in enumerate(layers) if layer is use.owner), len(layers))
    return at + 1 < len(layers) and isinstance(layers[at + 1], nn.GLU)
