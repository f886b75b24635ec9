"""How many heads the attention modules of known classes have, for `layout="heads"`.

Each class here keeps a head's rows of q, k and v together, and its columns of the output projection alike. A class that
is not here is not cut by head, whatever its attributes are called.
"""

from __future__ import annotations

from dataclasses import replace

from fire_core.weights.advice import HEADS
from fire_core.weights.entry import Entry
from fire_core.weights.fused import Misfit, number
from fire_core.weights.known import look_up
from fire_core.weights.topology import Use

# Classes | attributes that say how many heads of queries, and of keys and values if not as many, they have | the output
# projection, if it is in the module.
_HEADS = """
torch.activation.MultiheadAttention CLIPAttention OPTAttention BartAttention | num_heads | out_proj
vision.vit.Attention | heads | to_out
language.model.Attention | n_head n_kv_head | c_proj
GPT2Attention ImageGPTAttention | num_heads | c_proj
GPTNeoXAttention | config.num_attention_heads | dense
BloomAttention | num_heads | dense
Phi3Attention LlamaAttention MistralAttention MixtralAttention Qwen2Attention Qwen3Attention GemmaAttention |
    config.num_attention_heads config.num_key_value_heads | o_proj
Gemma2Attention GraniteAttention Olmo2Attention | config.num_attention_heads config.num_key_value_heads | o_proj
BertSelfAttention RobertaSelfAttention | num_attention_heads |
timm.attention.Attention timm.vision_transformer.Attention timm.swin_transformer.WindowAttention | num_heads | proj
torchvision.swin_transformer.ShiftedWindowAttention | num_heads | proj
"""
KNOWN = {
    name: (heads.split(), out.strip())
    for classes, heads, out in (line.split(" |") for line in _HEADS.replace("\n    ", " ").strip().splitlines())
    for name in classes.split()
}


def by_head(entry: Entry, use: Use) -> Entry:
    """An attention's matrix cut by head; kept, with the reason, where that is not known. Any other entry as it is."""
    if entry.kind != "matrix" or entry.role not in ("q", "k", "v", "attention_out"):
        return entry
    try:
        return replace(entry, heads=_heads_of(entry, use), columns=entry.role == "attention_out")
    except Misfit as misfit:
        return replace(entry, role="other", reason=f"{HEADS}: {misfit}")


def _heads_of(entry: Entry, use: Use) -> int:
    """How many heads a matrix holds.

    Raises:
        Misfit: the class is not known, or its weight is another than the known one.
    """
    leaf, holder = use.place
    known, name = look_up(KNOWN, holder), type(holder).__name__
    if known is None:
        raise Misfit(f"no rule knows {name}")
    (queries, *keys), out = known
    columns = entry.role == "attention_out"
    if columns and (leaf != out or entry.block):
        raise Misfit(f"{leaf} of {name} is not its output projection")
    heads = number(holder, queries if columns or entry.role == "q" or not keys else keys[0])
    d_out, d_in = entry.shape
    width, rest = divmod(d_in if columns else d_out, heads)
    declared: object = getattr(holder, "head_dim", None)
    if rest or heads % entry.repeats or entry.count > 1 or (isinstance(declared, int) and declared != width):
        raise Misfit(f"{d_out} x {d_in} is not {heads} heads of {name}")
    return heads
