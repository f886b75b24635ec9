"""Rules that say how the fused weights of transformers, timm, torchvision, x-transformers and mamba_ssm divide.

There are two kinds. A rule by name holds in the packages whose models the tests compare with their forward passes
(`tests/zoo`): a `qkv` with three times as many rows as columns is q, k, v. A rule by class comes before it, for weights
that are stored otherwise. It belongs to the class whose `forward` runs, named by its name or, where several classes
share it, by package, file and name (`timm.tiny_vit.Attention`). None of these packages is imported. Each rule is
checked against the shapes and attributes of the module.
"""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from fire_core.weights.entry import Cut, Entry
from fire_core.weights.syntax_trees import is_torchs
from fire_core.weights.topology import Use, input_count, projections_in_name

# Packages in which a name says how a layer is cut, unless its class is in the table below.
PACKAGES = ("transformers", "timm", "torchvision")

# A line is: classes | their layers or raw parameters | the blocks, see `parse_rule` | for a raw parameter its role, and
# how it is stored. Instead of classes: `*` is any class of `PACKAGES`, `*Experts` is any class of experts with the
# attribute `is_concatenated`.
# The lines at the end are for `layout="heads"`: classes that store the rows of one head of q, k and v together, and the
# columns of that head in the output projection as well | heads | the attribute with the number of heads of q, and a
# second one if k and v have another number | name of the output projection, if it is in the module.
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
FocalNetModulation | projection_in | q,context=dim gates=focal_level+1
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
    """Return the rules: from a class and the name of its weight to (blocks, how it is stored)."""
    table: dict[str, dict[str, tuple[str, str]]] = {}
    for line in filter(None, _RULES.replace("\n    ", " ").splitlines()):
        classes, weights, statement, *stored = [cell.strip() for cell in line.split(" |")]
        for name in classes.split():
            table.setdefault(name, {}).update(dict.fromkeys(weights.split(), (statement, " ".join(stored))))
    return table


TABLE = _table()
# The gates of recurrent layers in the order of torch's rows.
_GATES = {"LSTM": "i f g o", "GRU": "r z n", "LSTMCell": "i f g o", "GRUCell": "r z n"}
_OPERATORS = {"": operator.add, "+": operator.add, "*": operator.mul, "/": operator.floordiv}
UNKNOWN_HEADS = "its number of heads is not known"


class RuleDoesNotFit(Exception):
    """A module with a rule has a weight of another shape than the rule says; the message is a clause."""


def known_cut(use: Use, parameter: Tensor, rows: int, by_torch: bool = False) -> Cut | None:
    """Return how a parameter is cut by the rules; None if there is no rule for it.

    Args:
        use: the place of the parameter in the model.
        parameter: the weight of a layer, or a raw parameter.
        rows: d_out of its matrix.
        by_torch: whether the forward pass of a subclass calls torch's own code with the weight.

    Raises:
        RuleDoesNotFit: there is a rule for the class, but the weight has another shape.
    """
    names = use.name.split(".")
    # The modules around the parameter from the inside out, because a layer may be in a wrapper or in a list.
    levels = range(2) if use.is_raw else range(1, 4)
    for up in levels[: len(use.path) - levels.start]:
        module = use.path[-1 - up]
        rule = _rule_for(use, module, names[-1 - up], rows, by_torch)
        if rule is not None:
            try:
                return _cut_by_rule(rule, module, parameter if use.is_raw or rule[1] else None, rows)
            except (RuleDoesNotFit, AttributeError) as misfit:
                raise RuleDoesNotFit(f"the layout known for {type(module).__name__} does not fit: {misfit}") from misfit
    return parse_rule("value gate", None, rows) if feeds_glu(use) and rows % 2 == 0 else None


def _rule_for(use: Use, module: nn.Module, leaf: str, rows: int, by_torch: bool) -> tuple[str, str] | None:
    """Return the rule, (blocks, how it is stored), for a parameter; None if there is none.

    Args:
        use: the place of the parameter in the model.
        module: the module around the parameter whose rules are asked.
        leaf: name of the parameter, or of the layer with it, in that module.
        rows: d_out of its matrix.
        by_torch: see `known_cut`.
    """
    owner, rules = _rules_of(module)
    if by_torch and isinstance(module, nn.MultiheadAttention):
        rules = TABLE["torch.activation.MultiheadAttention"]
    if leaf in rules:
        return rules[leaf]
    columns = 0 if use.is_raw else input_count(use.owner)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):  # `weight_ih` and `weight_hh` hold one matrix for each gate
        if not by_torch and not is_torchs(owner):
            return None
        kind = next(c.__name__ for c in type(module).__mro__ if is_torchs(c))
        gates = _GATES.get(getattr(module, "mode", kind), "")
        return ("" if leaf.startswith("weight_hr") else gates, "")
    # A weight of one column is left out, because a projection would leave nothing of it but signs.
    if columns < 2 or owner.__module__.partition(".")[0] not in PACKAGES:
        return None
    if leaf in TABLE["*"]:
        return TABLE["*"][leaf]
    if len(parts := projections_in_name(leaf)) < 2:
        return None
    # Each part has as many rows as the weight has columns, or as a layer beside it has inputs.
    heights = {columns, *map(input_count, use.around.layers(module))}
    return (" ".join(parts), "") if rows in {len(parts) * height for height in heights} else None


def _rules_of(module: nn.Module) -> tuple[type, dict[str, tuple[str, str]]]:
    """Return the class whose `forward` a module runs, and the rules of the table for that class.

    A subclass with a forward pass of its own may use the rows otherwise, so the rules of its parents do not hold.
    """
    owner = next((c for c in type(module).__mro__ if "forward" in vars(c)), nn.Module)
    parts = owner.__module__.split(".")
    rules = TABLE.get(f"{parts[0]}.{parts[-1]}.{owner.__name__}")
    if rules is None and parts[0] in PACKAGES:  # a user's class may have such a name and store otherwise
        rules = TABLE.get(owner.__name__)
    if rules is None and owner.__name__.endswith("Experts") and hasattr(module, "is_concatenated"):
        rules = TABLE["*Experts"]
    return owner, rules or {}


def _cut_by_rule(rule: tuple[str, str], module: nn.Module, raw: Tensor | None, rows: int) -> Cut:
    """Return the cut that a rule gives.

    Args:
        rule: (blocks, how the weight is stored).
        module: the module whose attributes the rule names.
        raw: a raw parameter, of which the rule says which of the last two dimensions is d_out; None for a layer.
        rows: d_out of a layer's matrix.

    Raises:
        RuleDoesNotFit: the blocks do not add up to the rows, or the module lacks an attribute.
    """
    statement, stored = rule
    options = dict(word.partition(":")[::2] for word in stored.split())
    if raw is None or not options:
        return parse_rule(statement, module, rows)
    flag = options.get("transposed")
    transposed = flag is not None and bool(not flag or getattr(module, flag))
    cut = parse_rule(statement, module, raw.shape[-1 if transposed else -2])
    groups = evaluate(module, options["groups"]) if "groups" in options else 1
    return replace(cut, transposed=transposed, groups=groups, role=next(iter(options)))


def fused_class(use: Use) -> bool:
    """Return whether torch stores several matrices in a weight of this name: in attention, LSTM and GRU."""
    recurrent = (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell)
    is_gates = isinstance(use.owner, recurrent) and use.attribute.startswith("weight_")
    return is_gates or use.attribute == "in_proj_weight"


def feeds_glu(use: Use) -> bool:
    """Return whether torch's GLU, which splits its input in two halves, directly follows the layer in a Sequential."""
    if len(use.path) < 2 or not isinstance(use.path[-2], nn.Sequential):
        return False
    return isinstance(use.around.follower(use.path[-2], use.owner), nn.GLU)


def parse_rule(statement: str, module: Any, rows: int) -> Cut:
    """Return the cut that a rule's statement of blocks means for a module's weight.

    `q k v` are three blocks of equal height. `q,k=key_dim v=val_dim*2` are three blocks whose heights are attributes of
    the module, see `evaluate`. `num_heads: q k v` repeats so often, interleaved by head. An empty statement is one
    matrix. Of several statements between semicolons, the first counts whose condition the module meets: `use_global ? k
    v ; q k v`.

    Args:
        statement: the blocks.
        module: the module with the attributes; not needed if the statement names none.
        rows: d_out of the weight's matrix.

    Raises:
        RuleDoesNotFit: the blocks do not add up to the rows, or the module lacks an attribute.
        AttributeError: the module lacks the attribute of a condition.
    """
    for choice in statement.split(" ; "):
        condition, _, text = choice.rpartition("? ")
        if not condition or getattr(module, condition.strip()):
            break
    repeats_text, _, text = text.rpartition(": ")
    repeats = evaluate(module, repeats_text, rows) if repeats_text else 1
    parts: list[tuple[str, str]] = []  # name of a block, and the expression for its height
    for part in text.split():
        names, _, expression = part.partition("=")
        parts += [(name, expression) for name in names.split(",")]
    parts = parts or [("", "")]
    even_height = rows // max(1, repeats * len(parts))
    blocks = []
    for name, expression in parts:
        blocks.append((name, evaluate(module, expression, rows) if expression else even_height))
    cut = Cut(tuple(blocks), repeats)
    heights = tuple(height for _, height in blocks)
    if cut.rows != rows or min(heights) < 1:
        raise RuleDoesNotFit(f"{f'{repeats} x ' if repeats > 1 else ''}{heights} rows are not its {rows}")
    return cut


def evaluate(module: Any, expression: str, rows: int = 0) -> int:
    """Return the value of an expression such as `num_heads*head_dim`, computed from left to right without precedence.

    Args:
        module: the module with the attributes, or with a `config` that has them.
        expression: numbers, names of attributes and the word `rows`, joined by + * /, where / rounds down.
        rows: the value of `rows`.

    Raises:
        RuleDoesNotFit: neither the module nor its `config` has a whole number above 0 of that name.
    """
    result = 0
    for sign, term in re.findall(r"([+*/]?)(\w+)", expression):
        if term.isdigit():
            value = int(term)
        elif term == "rows":
            value = rows
        else:
            value = _attribute(module, term)
        result = _OPERATORS[sign](result, value)
    return result


def _attribute(module: Any, name: str) -> int:
    """Return the whole number above 0 in an attribute of a module, or else of its `config`.

    Raises:
        RuleDoesNotFit: there is none.
    """
    for holder in (module, getattr(module, "config", None)):
        value = getattr(holder, name, None)
        if isinstance(value, int) and value > 0:
            return int(value)
    raise RuleDoesNotFit(f"{type(module).__name__} has no number {name}")


def by_head(entry: Entry, use: Use) -> Entry:
    """Return an entry cut by attention head, for `layout="heads"`.

    Args:
        entry: an entry; if it is no matrix of an attention, it is returned unchanged.
        use: the place of its parameter.

    Returns:
        The entry with its `heads`; if these are not known, the entry with the role "other" and a reason, so that it is
        kept.
    """
    if entry.kind != "matrix" or entry.role not in ("q", "k", "v", "attention_out"):
        return entry
    try:
        return replace(entry, heads=_heads_of(entry, use), columns=entry.role == "attention_out")
    except RuleDoesNotFit as misfit:
        return replace(entry, role="other", reason=f"{UNKNOWN_HEADS}: {misfit}")


def _heads_of(entry: Entry, use: Use) -> int:
    """Return the number of heads in an attention's matrix.

    Raises:
        RuleDoesNotFit: there is no rule for the class, or the matrix is not the one that the rule means.
    """
    leaf, holder = use.place
    columns = entry.role == "attention_out"
    if columns and "heads" not in _rules_of(holder)[1] and not use.around.attends(holder):
        # In BERT the output projection is in another module, beside the one with the number of heads.
        around = use.path[max(use.path.index(holder) - 1, 0)]
        leaf, holder = next((("", part) for part in around.children() if "heads" in _rules_of(part)[1]), (leaf, holder))
    name = type(holder).__name__
    attributes, output_projection = _rules_of(holder)[1].get("heads", ("", ""))
    if not attributes:
        raise RuleDoesNotFit(f"no rule knows {name}")
    query_heads, *key_heads = attributes.split()
    if columns and (leaf != output_projection or entry.block):
        raise RuleDoesNotFit(f"{leaf} of {name} is not its output projection")
    heads = evaluate(holder, query_heads if columns or entry.role == "q" or not key_heads else key_heads[0])
    d_out, d_in = entry.shape
    head_dim, rest = divmod(d_in if columns else d_out, heads)
    declared_dim: object = getattr(holder, "head_dim", None)
    differs = isinstance(declared_dim, int) and declared_dim != head_dim
    if rest or heads % entry.repeats or entry.count > 1 or differs:
        raise RuleDoesNotFit(f"{d_out} x {d_in} is not {heads} heads of {name}")
    return heads
