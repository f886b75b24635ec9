"""What a parameter is, read from where it sits in the model: its owner, the owner's neighbours, its other names.

Names decide only where nothing else can: which of three equal projections is the query, and which layer is the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedParameter

_Q = {"q", "to_q", "q_proj", "c_q", "wq", "w_q", "query", "q_lin", "q_proj_weight"}
_K = {"k", "to_k", "k_proj", "c_k", "wk", "w_k", "key", "k_lin", "k_proj_weight"}
_V = {"v", "to_v", "v_proj", "c_v", "wv", "w_v", "value", "v_lin", "v_proj_weight"}
_QKV = {"qkv", "c_attn", "qkv_proj", "to_qkv", "Wqkv", "wqkv", "c_qkv", "in_proj_weight", "in_proj_bias"}
_KV = {"kv", "to_kv", "kv_proj", "c_kv"}
_GATE_UP = {"gate_up_proj", "gate_up", "w12"}
_HEAD = {"head", "heads", "lm_head", "classifier", "predictor"}
_HEADS = ("num_heads", "n_head", "n_heads", "num_attention_heads", "heads", "nhead")
_KV_HEADS = ("num_kv_heads", "n_kv_head", "n_kv_heads", "num_key_value_heads", "num_query_groups", "n_query_groups")
_HEAD_DIM = ("head_dim", "dim_head", "d_head")

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, `torch.compile`, activation checkpointing and FSDP wrappers."""
    while True:
        inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None
        for attribute in _WRAPPERS:
            inner = model._modules.get(attribute, inner)
        if inner is None:
            return model
        model = inner


def clean_name(name: str) -> str:
    """A parameter's name without what such wrappers put into it."""
    for attribute in _WRAPPERS:
        name = name.replace(f"{attribute}.", "")
    return name


@dataclass(frozen=True)
class Use:
    """One place where a parameter occurs."""

    name: str  # h.0.attn.c_attn.weight
    path: tuple[nn.Module, ...]  # from the root to the owner
    attribute: str  # weight

    @property
    def owner(self) -> nn.Module:
        return self.path[-1]

    @property
    def place(self) -> tuple[str, nn.Module]:
        """The projection's own name and the module that holds it, looking through Sequential: `to_out.0` -> to_out."""
        if not isinstance(self.owner, (nn.Linear, _ConvNd)) and not is_transposed_linear(self.owner):
            return self.attribute, self.owner  # a raw parameter, as in nn.MultiheadAttention
        parts, level = self.name.split(".")[:-1], len(self.path) - 1
        while level > 1 and isinstance(self.path[level - 1], nn.Sequential):
            level -= 1
        return (parts[level - 1], self.path[level - 1]) if level else ("", self.owner)


def uses_of(model: nn.Module) -> list[tuple[Tensor, list[Use]]]:
    """Every parameter of a model once, in the order of `named_parameters()`, with all the places where it occurs."""
    uses: dict[int, list[Use]] = {}
    parameters: dict[int, Tensor] = {}
    for name, path in _walk(model):
        for attribute, parameter in path[-1]._parameters.items():
            if parameter is None:
                continue
            full = f"{name}.{attribute}" if name else attribute
            if isinstance(parameter, UninitializedParameter):
                raise ValueError(f"{full} has no shape yet: run the lazy model once first")
            parameters[id(parameter)] = parameter
            uses.setdefault(id(parameter), []).append(Use(full, path, attribute))
    return [(parameters[key], places) for key, places in uses.items()]


def _walk(model: nn.Module) -> Iterable[tuple[str, tuple[nn.Module, ...]]]:
    """Every module with its name and its ancestors, in the order of `named_modules`, shared modules again."""
    stack: list[tuple[str, tuple[nn.Module, ...]]] = [("", (model,))]
    while stack:
        name, path = stack.pop()
        yield name, path
        named = [(key, unwrap(child)) for key, child in path[-1]._modules.items() if child is not None]
        children = [(f"{name}.{key}" if name else key, (*path, child)) for key, child in named]
        stack.extend(reversed(children))


def standing_of(use: Use, parameter: Tensor, tied: bool) -> tuple[str, str, str]:
    """(kind, role, reason) of a parameter; the reason is why it is kept when nobody asks for it by name."""
    locked = lock_of(use, parameter)
    if locked:
        return "locked", "other", locked
    kind, role = _kind_of(use, parameter), role_of(use, tied)
    if kind == "vector":
        return kind, role, "a bias, a scale or another vector: no matrix"
    return kind, role, _REASONS.get(role, "")


_REASONS = {
    "embedding": "an embedding: a table of vectors, not a map; the layout word embedding takes it",
    "depthwise": "a depthwise convolution: its matrices are m x 1; the layout word depthwise takes it",
    "other": "not the weight of a layer that is known: which of its dimensions is in and which out is unclear",
}


def lock_of(use: Use, parameter: Tensor) -> str:
    """Why a parameter's numbers are not the matrix that the module multiplies with; empty if they are."""
    kind, name = type(parameter), use.attribute
    if kind.__module__.startswith("bitsandbytes") or not (parameter.is_floating_point() or parameter.is_complex()):
        return f"quantised or packed ({_words(kind, parameter)}): its numbers are codes"
    if parameter.dtype.itemsize == 1:
        return f"{_words(kind, parameter)}: eight bits hold no isometry, and its scale lies elsewhere"
    if hasattr(kind, "__tensor_flatten__") and not hasattr(parameter, "device_mesh"):
        return f"quantised or packed ({_words(kind, parameter)}): its numbers are codes"
    if type(use.owner).__name__ == "ParametrizationList":
        by = ", ".join(type(child).__name__ for child in use.owner.children())
        return f"parametrised by {by}: the module computes its weight from it"
    base = name.removesuffix("_orig")
    if base != name and (f"{base}_mask" in use.owner._buffers or f"{base}_u" in use.owner._buffers):
        return "pruned or spectrally normed: the module computes its weight from it"
    pair = {f"{name[:-2]}_g", f"{name[:-2]}_v"}
    if name[-2:] in ("_g", "_v") and pair <= use.owner._parameters.keys():
        return "weight norm: the module computes its weight g v / |v| from it"
    return ""


def _words(kind: type, parameter: Tensor) -> str:
    dtype = str(parameter.dtype).removeprefix("torch.")
    return dtype if kind.__name__ in ("Parameter", "Tensor") else f"{kind.__name__} of {dtype}"


def _kind_of(use: Use, parameter: Tensor) -> str:
    if parameter.ndim < 2:
        return "vector"
    if isinstance(use.owner, _ConvTransposeNd):
        return "conv_transpose"
    if isinstance(use.owner, _ConvNd):
        return "conv"
    return "matrix" if parameter.ndim in (2, 3) else "vector"


def is_transposed_linear(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and not isinstance(module, _ConvNd)  # GPT-2 in transformers


def role_of(use: Use, tied: bool) -> str:
    owner = use.owner
    if isinstance(owner, _ConvNd):
        return "depthwise" if owner.groups > 1 and owner.groups == owner.in_channels else "conv"
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    leaf, holder = use.place
    dense = isinstance(owner, nn.Linear) or is_transposed_linear(owner)
    if not dense:
        raw = (_Q | _QKV, _K, _V) if isinstance(owner, nn.MultiheadAttention) else ()
        return next((role for role, known in zip("qkv", raw, strict=False) if leaf in known), "other")
    names = {name for name, _ in holder.named_children()}
    if isinstance(holder, nn.MultiheadAttention):
        return "attention_out"
    if names & _QKV or (names & _Q and names & (_K | _KV)):
        for role, words in (("q", _Q | _QKV), ("k", _K | _KV), ("v", _V)):
            if leaf in words:
                return role
        return "attention_out"
    if any("A_log" in module._parameters for module in use.path):
        return "ssm"
    if (tied and use.attribute == "weight") or _HEAD & set(use.name.split(".")) or use.name.startswith("fc."):
        return "head"
    return "mlp" if _linear_children(holder) > 1 else "dense"


def _linear_children(module: nn.Module) -> int:
    """Linear layers that a module holds itself or through a Sequential."""
    inner = [c for c in module.children() if isinstance(c, nn.Sequential)]
    children = [*module.children(), *(grandchild for c in inner for grandchild in c.children())]
    return sum(isinstance(child, nn.Linear) or is_transposed_linear(child) for child in children)


# ------------------------------------------------------------------------------------------ fused projections


def declared_blocks(name: str, role: str, d_out: int, heights: Sequence[int]) -> list[tuple[str, str, int]]:
    if sum(heights) != d_out:
        raise ValueError(
            f"blocks of {name}: heights {tuple(heights)} add up to {sum(heights)}, not to its {d_out} rows"
        )
    if role in ("q", "k", "v") and len(heights) == 3:
        return [(part, part, height) for part, height in zip("qkv", heights, strict=True)]
    return [(str(i), role, height) for i, height in enumerate(heights)]


def fused_blocks(use: Use, d_out: int, role: str) -> list[tuple[str, str, int]]:
    """(block, role, height) for each row block; a single one for a projection that is not fused."""
    leaf, holder = use.place
    if leaf in _QKV and role == "q":
        q, kv = _head_widths(use, holder, d_out)
        return [("q", "q", q), ("k", "k", kv), ("v", "v", kv)]
    if leaf in _KV and role == "k" and d_out % 2 == 0:
        return [("k", "k", d_out // 2), ("v", "v", d_out // 2)]
    if leaf in _GATE_UP and d_out % 2 == 0:
        return [("gate", role, d_out // 2), ("up", role, d_out // 2)]
    return [("", role, d_out)]


def _head_widths(use: Use, holder: nn.Module, d_out: int) -> tuple[int, int]:
    """Rows of the query and of the key (= of the value) in a fused projection."""
    heads, kv_heads, width = (_attribute(holder, names) for names in (_HEADS, _KV_HEADS, _HEAD_DIM))
    if heads and kv_heads and d_out % (heads + 2 * kv_heads) == 0:
        width = d_out // (heads + 2 * kv_heads)
        return heads * width, kv_heads * width
    rest = d_out - heads * width if heads and width else 0
    if width and rest > 0 and rest % (2 * width) == 0:
        return d_out - rest, rest // 2
    d_in = getattr(use.owner, "in_features", None) or getattr(use.owner, "embed_dim", None) or d_out / 3
    if d_out == 3 * d_in:
        return d_out // 3, d_out // 3
    raise ValueError(
        f"{use.name}: cannot tell how its {d_out} rows divide into q, k and v; declare it: "
        f"resolve(model, blocks={{{use.name!r}: (q_rows, k_rows, v_rows)}})"
    )


def _attribute(module: nn.Module, names: Iterable[str]) -> int | None:
    """The first of these integer attributes on a module or its `config`."""
    for place in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(place, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None
