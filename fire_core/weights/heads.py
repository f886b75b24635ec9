"""How many heads the attention modules of known classes have, for `layout="heads"`.

Each class here keeps a head's rows of q, k and v together, and its columns of the output projection alike. A class that
is not here is not cut by head, whatever its attributes are called.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from fire_core.weights.entry import Entry
from fire_core.weights.fused import Misfit, number
from fire_core.weights.known import look_up
from fire_core.weights.topology import Use

UNKNOWN = "its number of heads is not known"


def _classes(names: str, queries: str, keys: str = "", out: str = "") -> dict[str, tuple[str, str, str]]:
    return dict.fromkeys(names.split(), (queries, keys, out))


# Attributes of the module, or of its config, that say how many heads the queries (and the output projection's columns)
# have, and keys and values (empty: as many); and the output projection's name in the module (empty: it is elsewhere).
KNOWN = {
    **_classes("torch.activation.MultiheadAttention", "num_heads", out="out_proj"),
    **_classes("vision.vit.Attention", "heads", out="to_out"),
    **_classes("language.model.Attention", "n_head", "n_kv_head", "c_proj"),
    **_classes("GPT2Attention ImageGPTAttention", "num_heads", out="c_proj"),
    **_classes("GPTNeoXAttention", "config.num_attention_heads", out="dense"),
    **_classes("BloomAttention", "num_heads", out="dense"),
    **_classes(
        "Phi3Attention LlamaAttention MistralAttention MixtralAttention Qwen2Attention Qwen3Attention GemmaAttention "
        "Gemma2Attention GraniteAttention Olmo2Attention",
        "config.num_attention_heads",
        "config.num_key_value_heads",
        "o_proj",
    ),
    **_classes("CLIPAttention OPTAttention BartAttention", "num_heads", out="out_proj"),
    **_classes("BertSelfAttention RobertaSelfAttention", "num_attention_heads"),
    **_classes(
        "timm.attention.Attention timm.vision_transformer.Attention timm.swin_transformer.WindowAttention "
        "torchvision.swin_transformer.ShiftedWindowAttention",
        "num_heads",
        out="proj",
    ),
}


def by_head(entry: Entry, use: Use) -> Entry:
    """An attention's matrix cut by head; kept, with the reason, where that is not known. Any other entry as it is."""
    if entry.kind != "matrix" or entry.role not in ("q", "k", "v", "attention_out"):
        return entry
    leaf, holder = use.place
    try:
        heads, columns = _heads_of(entry, leaf, holder)
    except Misfit as misfit:
        return replace(entry, role="other", reason=f"{UNKNOWN}: {misfit}")
    return replace(entry, heads=heads, columns=columns)


def warnings_of(entries: Iterable[Entry]) -> list[str]:
    """A line for the weights that are kept because nobody knows their heads."""
    reasons = {entry.label: entry.reason for entry in entries if entry.reason.startswith(UNKNOWN)}
    if not reasons:
        return []
    first = ", ".join(list(reasons)[:3]) + (f" and {len(reasons) - 3} more" if len(reasons) > 3 else "")
    return [f'layout="heads" keeps {first}: {next(iter(reasons.values()))}; layout="attention" takes them uncut']


def _heads_of(entry: Entry, leaf: str, holder: nn.Module) -> tuple[int, bool]:
    """How many heads a matrix holds, and whether they divide its columns.

    Raises:
        Misfit: the class is not known, or its weight is another than the known one.
    """
    known, name = look_up(KNOWN, holder), type(holder).__name__
    if known is None:
        raise Misfit(f"no rule knows {name}")
    queries, keys, out = known
    columns = entry.role == "attention_out"
    if columns and (leaf != out or entry.block):
        raise Misfit(f"{leaf} of {name} is not its output projection")
    heads = number(holder, queries if columns or entry.role == "q" or not keys else keys)
    d_out, d_in = entry.shape
    width, rest = divmod(d_in if columns else d_out, heads)
    if rest or heads % entry.repeats or entry.count > 1:
        raise Misfit(f"{d_out} x {d_in} is not {heads} heads of {name}")
    declared: Any = getattr(holder, "head_dim", None)
    if isinstance(declared, int) and declared != width:
        raise Misfit(f"{d_out} x {d_in} is not {heads} heads of {name}, each {declared} wide")
    return heads, columns
