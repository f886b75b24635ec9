"""Fused weights of transformers, timm, torchvision, x-transformers and mamba_ssm.

Two kinds of knowledge. A rule by name holds in the packages whose families the tests compare with their forward passes
(`tests/zoo`): a `qkv` with three times as many rows as columns is q, k, v. A rule by class goes before it, for whatever
lies otherwise; it belongs to the class whose `forward` runs, by its name or, where many use the name, by package, file
and name (`timm.tiny_vit.Attention`). Nothing is imported. Each rule is checked against shapes and attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from fire_core.weights.fused import Cut, Misfit, number, stated
from fire_core.weights.topology import HOLDS, Use, width

Known = TypeVar("Known")
# Packages in which a name says how a layer is cut, unless its class is in the table below.
PACKAGES = ("transformers", "timm", "torchvision")
STRAIGHT = ("qkv", "Wqkv", "kv", "to_kv", "qk")  # of equal parts, each as high as the weight is wide

# Classes | layers or raw parameters of theirs | their blocks, see `fused.stated` | of a raw one: role and storage.
# Two more names: `*`, any class of the packages; `*Experts`, classes that say themselves how they store.
_RULES = """
* | gate_up_proj Wi | gate up
* | kv_b_proj | num_heads: k=qk_nope_head_dim v=v_head_dim
* | kv_a_proj_with_mqa | latent=kv_lora_rank rope=qk_rope_head_dim

GPTNeoXAttention GPTNeoXJapaneseAttention | query_key_value | num_attention_heads: q k v
BloomAttention PersimmonAttention | query_key_value | num_heads: q k v
FalconAttention FalconFlashAttention2 | query_key_value |
    new_decoder_architecture ? num_kv_heads: q=num_heads/num_kv_heads*head_dim k,v=head_dim ;
    multi_query ? q=num_heads*head_dim k,v=head_dim ; num_heads: q k v
CodeGenAttention | qkv_proj | 4: q v k
GPTBigCodeAttention | c_attn | is_cross_attention ? k,v=head_dim ; multi_query ? q=embed_dim k,v=kv_dim ;
    num_heads: q k v
MiniMaxLightningAttention | qkv_proj | num_attention_heads: q k v
DisentangledSelfAttention | in_proj | num_attention_heads: q k v
EsmFoldSelfAttention | proj | num_heads: q k v
GPT2Attention DecisionTransformerGPT2Attention ImageGPTAttention | c_attn | is_cross_attention ? k v ; q k v
transformers.modeling_openai.Attention | c_attn | q k v
BarkSelfAttention BarkSelfFlashAttention2 | att_proj | q k v
LayoutLMv2SelfAttention | qkv_linear | q k v
DbrxAttention | Wqkv | q=num_heads*head_dim k,v=num_key_value_heads*head_dim
Phi3Attention Phi4MultimodalAttention | qkv_proj | q=num_attention_heads*head_dim k,v=num_key_value_heads*head_dim
Exaone4_5_VisionAttention | qkv | q=q_dim k,v=kv_dim
JetMoeAttention | kv_proj | k v
torchvision.maxvit.RelativePositionalMultiHeadAttention | to_qkv | q k v
torchvision.mvit.MultiscaleAttention timm.mvitv2.MultiScaleAttention timm.hiera.MaskUnitAttention | qkv | q k v
timm.hieradet_sam2.MultiScaleAttention HieraMaskUnitAttention Sam2MultiScaleAttention | qkv | q k v
timm.gcvit.WindowAttentionGlobal | qkv | use_global ? k v ; q k v
timm.tiny_vit.Attention timm.efficientformer.Attention timm.levit.Attention | qkv | num_heads: q,k=key_dim v=val_dim
timm.levit.AttentionDownsample | kv | num_heads: k=key_dim v=val_dim
timm.efficientvit_msra.CascadedGroupAttention | qkvs | q,k=key_dim v=val_dim
timm.efficientvit_mit.LiteMLA | qkv | rows/3/dim: q k v
timm.maxxvit.Attention2d timm.maxxvit.AttentionCl timm.attention2d.Attention2d | qkv | head_first ? num_heads: q k v ;
    q k v
timm.bottleneck_attn.BottleneckAttn | qkv | q,k=dim_out_qk v=dim_out_v
timm.halo_attn.HaloAttn | kv | num_heads: k=dim_head_qk v=dim_head_v
timm.lambda_layer.LambdaLayer | qkv | q=num_heads*dim_qk k=dim_qk v=dim_v
timm.shvit.SHSA | qkv | q,k=qk_dim v=pdim
timm.mobilevit.LinearSelfAttention MobileViTV2LinearSelfAttention | qkv_proj | q=1 k,v=embed_dim
Qwen3NextAttention Qwen3_5Attention Qwen3_5MoeAttention Qwen4ExpTextAttention | q_proj |
    num_attention_heads: q=head_dim gate=head_dim

GraniteMoeHybridMLP GraniteMoeSWAMLP GraniteMoeSharedMLP | input_linear | gate up
MoonshineDecoderMLP MoonshineStreamingDecoderMLP MoshiGatingMLP KyutaiSpeechToTextGatingMLP | fc1 | gate up
timm.mlp.GluMlp | fc1 | gate up
timm.mambaout.GatedConvBlock | fc1 | gate value
ClvpGatedLinearUnit | proj | gate up
x_transformers.x_transformers.GLU | proj | up gate
SeamlessM4TConformerConvolutionModule SeamlessM4Tv2ConformerConvolutionModule | pointwise_conv1 | value gate
Wav2Vec2BertConvolutionModule Wav2Vec2ConformerConvolutionModule | pointwise_conv1 | value gate

MambaMixer FalconMambaMixer JambaMambaMixer mamba_ssm.mamba_simple.Mamba | in_proj | x gate
MambaMixer FalconMambaMixer JambaMambaMixer | x_proj | dt=time_step_rank B,C=ssm_state_size
mamba_ssm.mamba_simple.Mamba | x_proj | dt=dt_rank B,C=d_state
ZambaMambaMixer | in_proj | rows/2: x gate
Mamba2Mixer NemotronHMamba2Mixer BambaMixer FalconH1Mixer GraniteMoeHybridMambaLayer Zamba2MambaMixer | in_proj |
    gate,x=intermediate_size B,C=n_groups*ssm_state_size dt=num_heads
mamba_ssm.mamba2.Mamba2 | in_proj | gate,x=d_inner B,C=ngroups*d_state dt=nheads
Qwen3NextGatedDeltaNet | in_proj_qkvz | num_k_heads: q,k=head_k_dim v,z=num_v_heads/num_k_heads*head_v_dim
Qwen3NextGatedDeltaNet | in_proj_ba | num_k_heads: b a
Qwen3_5GatedDeltaNet Qwen3_5MoeGatedDeltaNet Qwen4ExpTextGatedDeltaNet | in_proj_qkv | q,k=key_dim v=value_dim
Lfm2ShortConv Lfm2MoeShortConv Lfm3ShortConv Lfm3VlVisionShortConv | in_proj | B C x
FocalNetModulation | projection_in | q,context=rows-focal_level-1/2 gates=focal_level+1

*Experts | gate_up_proj | is_concatenated ? gate up ; rows/2: gate up | mlp transposed:is_transposed
*Experts | up_proj down_proj | | mlp transposed:is_transposed
Llama4TextExperts | gate_up_proj | gate up | mlp transposed
Llama4TextExperts | down_proj | | mlp transposed
InklingSharedExperts | gate_proj up_proj down_proj | | mlp
LongcatFlashExperts Step3p7Experts | gate_up_proj | gate up | mlp
LongcatFlashExperts Step3p7Experts | down_proj | | mlp
JetMoeMoE | input_linear | gate up | mlp
JetMoeMoE | output_linear | | mlp
JetMoeMoA | input_linear | | q
JetMoeMoA | output_linear | | attention_out
DbrxExpertGLU | w1 v1 | | mlp groups:moe_num_experts
DbrxExpertGLU | w2 | | mlp transposed groups:moe_num_experts
"""


def _table() -> dict[str, dict[str, tuple[str, str]]]:
    """By class and weight: its statement, and how it is stored."""
    table: dict[str, dict[str, tuple[str, str]]] = {}
    for line in filter(None, _RULES.replace("\n    ", " ").splitlines()):
        classes, weights, statement, *stored = [cell.strip() for cell in line.split(" |")]
        for name in classes.split():
            table.setdefault(name, {}).update(dict.fromkeys(weights.split(), (statement, " ".join(stored))))
    return table


TABLE = _table()
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
    names = use.name.split(".")
    # Upwards, each with the name by which it may know the parameter: a layer may sit in a wrapper, or in a list.
    levels = range(1, 4) if not use.is_raw else range(2 if parameter.ndim > 1 else 1)
    for up in levels[: len(use.path) - levels.start]:
        module = use.path[-1 - up]
        rule = _rule_for(module, names[-1 - up], rows, 0 if use.is_raw else width(use.owner))
        if rule is not None:
            try:
                return _apply(rule, module, parameter if use.is_raw else None, rows)
            except (Misfit, AttributeError) as misfit:
                raise Misfit(f"the layout known for {type(module).__name__} does not fit: {misfit}") from misfit
    return stated("value gate", None, rows) if _feeds_glu(use) and rows % 2 == 0 else None


def _apply(rule: tuple[str, str], module: nn.Module, raw: Tensor | None, rows: int) -> Cut:
    """A rule's cut; of a raw parameter, which of its last two dimensions is d_out is for the rule to say."""
    statement, stored = rule
    options = dict(word.partition(":")[::2] for word in stored.split())
    if raw is None or raw.ndim < 2 or not options:
        return stated(statement, module, rows)
    flag = options.get("transposed")
    transposed = flag is not None and bool(not flag or getattr(module, flag))
    cut = stated(statement, module, raw.shape[-1 if transposed else -2])
    groups = number(module, options["groups"]) if "groups" in options else 1
    return replace(cut, transposed=transposed, groups=groups, role=next(iter(options)))


def _rule_for(module: nn.Module, leaf: str, rows: int, columns: int) -> tuple[str, str] | None:
    """The rule for a module's own parameter, or for the layer of that name in it; None where none is known."""
    owner = forward_class(module)
    rules = look_up(TABLE, module)
    if rules is None and owner.__name__.endswith("Experts") and hasattr(module, "is_concatenated"):
        rules = TABLE["*Experts"]
    if rules is not None and leaf in rules:
        return rules[leaf]
    if isinstance(module, nn.MultiheadAttention):
        return ("q k v", "") if leaf.startswith("in_proj_") else None
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):  # one matrix for each gate of `weight_ih` and of `weight_hh`
        gates = _GATES.get(getattr(module, "mode", type(module).__name__), "")
        return ("" if leaf.startswith("weight_hr") else gates, "")
    if columns > 1 and owner.__module__.partition(".")[0] in PACKAGES:  # of one column nothing is left but signs
        if leaf in STRAIGHT and rows == len(HOLDS[leaf]) * columns:
            return " ".join(HOLDS[leaf]), ""
        return TABLE["*"].get(leaf)
    return None


def forward_class(module: nn.Module) -> type:
    """The class whose `forward` runs: a subclass with its own may read its rows anew."""
    return next((c for c in type(module).__mro__ if "forward" in vars(c)), nn.Module)


def look_up(table: Mapping[str, Known], module: nn.Module) -> Known | None:
    """What a table of classes holds for a module."""
    owner = forward_class(module)
    parts = owner.__module__.split(".")
    return table.get(f"{parts[0]}.{parts[-1]}.{owner.__name__}") or table.get(owner.__name__)


def _feeds_glu(use: Use) -> bool:
    """Whether torch's own GLU, which takes two halves, comes right after the layer in a Sequential."""
    if len(use.path) < 2 or not isinstance(use.path[-2], nn.Sequential):
        return False
    layers = list(use.path[-2].children())
    at = next((i for i, layer in enumerate(layers) if layer is use.owner), len(layers))
    return at + 1 < len(layers) and isinstance(layers[at + 1], nn.GLU)
