"""What is known of the fused weights of transformers, timm, torchvision, x-transformers and mamba_ssm.

Two kinds of knowledge. A rule by name holds in the packages whose families the tests compare with their forward passes
(`tests/zoo`): a `qkv` with three times as many rows as columns is q, k, v. A rule by class goes before it, for whatever
lies otherwise; it belongs to the class whose `forward` runs, by its name or, where many use the name, by package, file
and name (`timm.tiny_vit.Attention`). Nothing is imported. Each rule is checked against shapes and attributes.
"""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from fire_core.weights.code import is_torchs
from fire_core.weights.entry import Cut, Entry
from fire_core.weights.topology import Use, holds, width

# Packages in which a name says how a layer is cut, unless its class is in the table below.
PACKAGES = ("transformers", "timm", "torchvision")

# Classes | layers or raw parameters of theirs | their blocks, see `parse_rule` | of a raw one: role and storage.
# Two more names: `*`, any class of the packages; `*Experts`, classes that say themselves how they store.
# Last, for `layout="heads"`: classes that keep a head's rows of q, k and v together, and its columns of the output
# projection alike | heads | attributes that say how many heads of queries, and of keys and values if not as many, they
# have | the output projection, if it is in the module.
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
DbrxAttention | Wqkv | q=num_heads*head_dim k,v=num_key_value_heads*head_dim
Phi3Attention Phi4MultimodalAttention | qkv_proj | q=num_attention_heads*head_dim k,v=num_key_value_heads*head_dim
Exaone4_5_VisionAttention | qkv | q=q_dim k,v=kv_dim
JetMoeAttention | kv_proj | k v
timm.gcvit.WindowAttentionGlobal | qkv | use_global ? k v ; q k v
timm.tiny_vit.Attention timm.efficientformer.Attention timm.levit.Attention | qkv | num_heads: q,k=key_dim v=val_dim
timm.levit.AttentionDownsample | kv | num_heads: k=key_dim v=val_dim
timm.efficientvit_msra.CascadedGroupAttention | qkvs | q,k=key_dim v=val_dim
timm.efficientvit_mit.LiteMLA | qkv | rows/3/dim: q k v
timm.maxxvit.Attention2d timm.maxxvit.AttentionCl timm.attention2d.Attention2d | qkv | head_first ? num_heads: q k v ;
    q k v
timm.bottleneck_attn.BottleneckAttn | qkv | q,k=dim_out_qk v=dim_out_v
timm.halo_attn.HaloAttn | kv | num_heads: k=dim_head_qk v=dim_head_v
timm.iformer.SHMA | v_gate | v gate
timm.lambda_layer.LambdaLayer | qkv | q=num_heads*dim_qk k=dim_qk v=dim_v
timm.shvit.SHSA | qkv | q,k=qk_dim v=pdim
timm.mobilevit.LinearSelfAttention MobileViTV2LinearSelfAttention | qkv_proj | q=1 k,v=embed_dim
Qwen3NextAttention Qwen3_5Attention Qwen3_5MoeAttention Qwen4ExpTextAttention | q_proj |
    num_attention_heads: q=head_dim gate=head_dim
AXK2Attention | q_gate_proj | num_heads: q=qk_head_dim gate=v_head_dim
DeepseekV4Attention DeepseekV4HCACompressor | kv_proj |
DeepseekV4CSACompressor DeepseekV4Indexer | kv_proj gate_proj | previous current
DeepseekV4Attention | o_a_proj | | attention_out groups:o_groups

timm.mambaout.GatedConvBlock | fc1 | gate value
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
timm.efficientvim.HSMSSD | BCdt_proj | B,C,dt=state_dim
timm.efficientvim.HSMSSD | hz_proj | h z
timm.focalnet.FocalModulation | f | q,context=dim gates=focal_level+1
FocalNetModulation | projection_in | q,context=rows-focal_level-1/2 gates=focal_level+1
GraniteSpeech5EncoderConvolutionModule | pointwise_lin1 | value gate
Phi4MultimodalAudioGluPointWiseConv | ext_pw_conv_1d | up gate

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

torch.activation.MultiheadAttention | in_proj_weight | q k v
torch.activation.MultiheadAttention CLIPAttention OPTAttention BartAttention | heads | num_heads | out_proj
vision.vit.Attention | heads | heads | to_out
language.model.Attention | heads | n_head n_kv_head | c_proj
GPT2Attention ImageGPTAttention | heads | num_heads | c_proj
GPTNeoXAttention | heads | num_attention_heads | dense
BloomAttention | heads | num_heads | dense
Phi3Attention LlamaAttention MistralAttention MixtralAttention Qwen2Attention Qwen3Attention GemmaAttention
    Gemma2Attention GraniteAttention Olmo2Attention | heads | num_attention_heads num_key_value_heads |
    o_proj
BertSelfAttention RobertaSelfAttention | heads | num_attention_heads |
timm.attention.Attention timm.swin_transformer.WindowAttention | heads | num_heads | proj
torchvision.swin_transformer.ShiftedWindowAttention | heads | num_heads | proj
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
_OPERATORS = {"": operator.add, "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
UNKNOWN_HEADS = "its number of heads is not known"


class RuleDoesNotFit(Exception):
    """A known module whose weight has another shape than its rule says; the message is one clause."""


def known_cut(use: Use, parameter: Tensor, rows: int, by_torch: bool = False) -> Cut | None:
    """What the rules say of a parameter; None where none knows it.

    Args:
        use: where the parameter sits.
        parameter: a weight, or a raw parameter.
        rows: d_out of its matrix.
        by_torch: whether torch's own code takes the weight, called in a forward pass of a subclass.

    Raises:
        RuleDoesNotFit: its class is known with another shape.
    """
    names = use.name.split(".")
    # Upwards, each with the name by which it may know the parameter: a layer may sit in a wrapper, or in a list.
    levels = range(2) if use.is_raw else range(1, 4)
    for up in levels[: len(use.path) - levels.start]:
        module = use.path[-1 - up]
        rule = _rule_for(use, module, names[-1 - up], rows, by_torch)
        if rule is not None:
            try:
                return _apply(rule, module, parameter if use.is_raw or rule[1] else None, rows)
            except (RuleDoesNotFit, AttributeError) as misfit:
                raise RuleDoesNotFit(f"the layout known for {type(module).__name__} does not fit: {misfit}") from misfit
    return parse_rule("value gate", None, rows) if feeds_glu(use) and rows % 2 == 0 else None


def _rule_for(use: Use, module: nn.Module, leaf: str, rows: int, by_torch: bool) -> tuple[str, str] | None:
    """The rule for a module's own parameter, or for the layer of that name in it; None where none is known."""
    owner, rules = _rules_of(module)
    if by_torch and isinstance(module, nn.MultiheadAttention):
        rules = TABLE["torch.activation.MultiheadAttention"]
    if leaf in rules:
        return rules[leaf]
    columns = 0 if use.is_raw else width(use.owner)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):  # one matrix for each gate of `weight_ih` and of `weight_hh`
        if not by_torch and not is_torchs(owner):
            return None
        kind = next(c.__name__ for c in type(module).__mro__ if is_torchs(c))
        gates = _GATES.get(getattr(module, "mode", kind), "")
        return ("" if leaf.startswith("weight_hr") else gates, "")
    if columns < 2 or owner.__module__.partition(".")[0] not in PACKAGES:  # of one column nothing is left but signs
        return None
    if leaf in TABLE["*"]:
        return TABLE["*"][leaf]
    if len(parts := holds(leaf)) < 2:
        return None
    # Each part is as high as the weight is wide, or as what reads it.
    heights = {columns, *map(width, use.around.layers(module))}
    return (" ".join(parts), "") if rows in {len(parts) * height for height in heights} else None


def _rules_of(module: nn.Module) -> tuple[type, dict[str, tuple[str, str]]]:
    """The class whose `forward` runs (a subclass with its own may read its rows anew), and the table's rules for it."""
    owner = next((c for c in type(module).__mro__ if "forward" in vars(c)), nn.Module)
    parts = owner.__module__.split(".")
    rules = TABLE.get(f"{parts[0]}.{parts[-1]}.{owner.__name__}")
    if rules is None and parts[0] in PACKAGES:  # a class of one's own may have a known name, and lies otherwise
        rules = TABLE.get(owner.__name__)
    if rules is None and owner.__name__.endswith("Experts") and hasattr(module, "is_concatenated"):
        rules = TABLE["*Experts"]
    return owner, rules or {}


def _apply(rule: tuple[str, str], module: nn.Module, raw: Tensor | None, rows: int) -> Cut:
    """A rule's cut; of a raw parameter, which of its last two dimensions is d_out is for the rule to say."""
    statement, stored = rule
    options = dict(word.partition(":")[::2] for word in stored.split())
    if raw is None or not options:
        return parse_rule(statement, module, rows)
    flag = options.get("transposed")
    transposed = flag is not None and bool(not flag or getattr(module, flag))
    cut = parse_rule(statement, module, raw.shape[-1 if transposed else -2])
    groups = number(module, options["groups"]) if "groups" in options else 1
    return replace(cut, transposed=transposed, groups=groups, role=next(iter(options)))


def fused_class(use: Use) -> bool:
    """Whether torch keeps several matrices in the weights of this name: of attention, LSTM and GRU."""
    kinds = (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell)
    return use.attribute == "in_proj_weight" or (isinstance(use.owner, kinds) and use.attribute.startswith("weight_"))


def feeds_glu(use: Use) -> bool:
    """Whether torch's own GLU, which takes two halves, comes right after the layer in a Sequential."""
    if len(use.path) < 2 or not isinstance(use.path[-2], nn.Sequential):
        return False
    return isinstance(use.around.follower(use.path[-2], use.owner), nn.GLU)


def parse_rule(statement: str, module: Any, rows: int) -> Cut:
    """The cut that a statement of a rule gives for a module's weight.

    `q k v` are blocks of equal height; `q,k=key_dim v=val_dim*2` have heights that attributes of the module make;
    `num_heads: q k v` recur, interleaved by head; nothing is one matrix. Of several, between semicolons, the first
    whose condition the module meets: `use_global ? k v ; q k v`.

    Raises:
        RuleDoesNotFit: the blocks are not the rows, or the module lacks an attribute.
    """
    for choice in statement.split(" ; "):
        condition, _, text = choice.rpartition("? ")
        if not condition or getattr(module, condition.strip()):
            break
    recurs, _, text = text.rpartition(": ")
    repeats = number(module, recurs, rows) if recurs else 1
    parts = [(name, h) for names, _, h in (part.partition("=") for part in text.split()) for name in names.split(",")]
    parts = parts or [("", "")]
    even = rows // max(1, repeats * len(parts))
    cut = Cut(tuple((name, number(module, height, rows) if height else even) for name, height in parts), repeats)
    heights = tuple(height for _, height in cut.blocks)
    if cut.rows != rows or min(heights) < 1:
        raise RuleDoesNotFit(f"{f'{repeats} x ' if repeats > 1 else ''}{heights} rows are not its {rows}")
    return cut


def number(module: Any, expression: str, rows: int = 0) -> int:
    """What numbers, attributes of the module or else of its `config`, and its `rows` make, from left to right.

    Raises:
        RuleDoesNotFit: the module has no number of that name.
    """
    result = 0
    for sign, term in re.findall(r"([-+*/]?)(\w+)", expression):
        value = int(term) if term.isdigit() else rows if term == "rows" else _attribute(module, term)
        result = _OPERATORS[sign](result, value)
    return result


def _attribute(module: Any, name: str) -> int:
    for place in (module, getattr(module, "config", None)):
        value = getattr(place, name, None)
        if isinstance(value, int) and value > 0:
            return int(value)
    raise RuleDoesNotFit(f"{type(module).__name__} has no number {name}")


def by_head(entry: Entry, use: Use) -> Entry:
    """An attention's matrix cut by head; kept, with the reason, where that is not known. Any other entry as it is."""
    if entry.kind != "matrix" or entry.role not in ("q", "k", "v", "attention_out"):
        return entry
    try:
        return replace(entry, heads=_heads_of(entry, use), columns=entry.role == "attention_out")
    except RuleDoesNotFit as misfit:
        return replace(entry, role="other", reason=f"{UNKNOWN_HEADS}: {misfit}")


def _heads_of(entry: Entry, use: Use) -> int:
    """How many heads a matrix holds.

    Raises:
        RuleDoesNotFit: the class is not known, or its weight is another than the known one.
    """
    leaf, holder = use.place
    columns = entry.role == "attention_out"
    if columns and "heads" not in _rules_of(holder)[1] and not use.around.attends(holder):
        # BERT's output lies beside the part that knows the heads.
        around = use.path[max(use.path.index(holder) - 1, 0)]
        leaf, holder = next((("", part) for part in around.children() if "heads" in _rules_of(part)[1]), (leaf, holder))
    name, (statement, out) = type(holder).__name__, _rules_of(holder)[1].get("heads", ("", ""))
    if not statement:
        raise RuleDoesNotFit(f"no rule knows {name}")
    queries, *keys = statement.split()
    if columns and (leaf != out or entry.block):
        raise RuleDoesNotFit(f"{leaf} of {name} is not its output projection")
    heads = number(holder, queries if columns or entry.role == "q" or not keys else keys[0])
    d_out, d_in = entry.shape
    width_of_heads, rest = divmod(d_in if columns else d_out, heads)
    declared: object = getattr(holder, "head_dim", None)
    if rest or heads % entry.repeats or entry.count > 1 or (isinstance(declared, int) and declared != width_of_heads):
        raise RuleDoesNotFit(f"{d_out} x {d_in} is not {heads} heads of {name}")
    return heads
