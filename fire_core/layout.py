"""Which weights a projection touches, and how each one falls apart into matrices.

A layout is data: a list of `Entry`, one for each parameter, or for each row block of a fused parameter. `resolve` makes
it from a preset, from a mapping such as `{"conv": "project", "linear": "reinit"}`, and from patterns.

How a parameter is cut (d_out x d_in is the shape of one matrix):

=====================  ==========================================================================================
Linear                 one matrix
Conv1d/2d/3d           one (c_out, c_in) matrix for every kernel position, as in the paper
grouped convolution    the same for each group: (c_out/g, c_in/g); groups never mix, so neither do their matrices
depthwise convolution  kept: with one input channel a group its matrices are m x 1, and a projection would leave
                       nothing of the filter but signs. `include` it by name to project it all the same
transposed conv.       as the convolution; stored (c_in, c_out/g, ...), so each matrix is transposed first
fused q, k, v          row blocks q, k, v, of unequal height under grouped-query attention
fused gate and up      two row blocks of equal height
tied weight            once, under its first name
embedding, norm, bias  kept; an embedding can be included by name or type
other raw parameters   kept; included by name, 2-D ones are one matrix and 3-D ones a stack of matrices (experts)
=====================  ==========================================================================================

What a weight *is* (its role) comes from where it sits: the module that owns it, that module's children, ties.
Names decide only where nothing else can: which of three equal projections is the query, and which layer is the head.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedParameter

ACTIONS = ("project", "reinit", "keep")
DENSE = ("q", "k", "v", "attention_out", "mlp", "ssm", "head", "dense")
# A word in a layout stands for these roles.
GROUPS: dict[str, tuple[str, ...]] = {
    "linear": DENSE,
    "conv": ("conv",),
    "depthwise": ("depthwise",),
    "attention": ("q", "k", "v", "attention_out"),
    "qk": ("q", "k"),
    "mlp": ("mlp",),
    "ssm": ("ssm",),
    "head": ("head",),
    "embedding": ("embedding",),
}
_EVERY_LAYER = {"linear": "project", "conv": "project"}
PRESETS: dict[str, dict[str, str]] = {
    "all": _EVERY_LAYER,
    "attention": {"attention": "project"},
    "qk": {"qk": "project"},
    "mlp": {"mlp": "project"},
    "conv": {"conv": "project"},
    # What the paper's reference code does for each of its networks.
    "resnet": _EVERY_LAYER,
    "vgg": _EVERY_LAYER,
    "vit": {"qk": "project"},
    "gpt": _EVERY_LAYER,
    "dqn": {"conv": "project", "linear": "reinit"},
    "sac": {"linear": "project"},
}

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

Selector = str | type[nn.Module] | nn.Module | Tensor
Layout = str | Mapping[str, str] | Sequence["Entry"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One parameter, or one row block of a fused parameter, and what is to happen to it.

    Attributes:
        name: the parameter's first name in `named_parameters()`, wrappers such as `_orig_mod.` removed.
        parameter: the tensor itself.
        role: what it does in the network: a word of `GROUPS`' values, or "other".
        action: "project", "reinit" (to the initial value) or "keep".
        block: the block's name ("q", "k", "gate", ...), empty for a whole parameter.
        rows: the block's rows [start, stop) of the (d_out, d_in) matrix; None for all.
        kind: "matrix", "conv", "conv_transpose" or "vector" (a bias or scale: reinit and keep only).
        groups: groups of a convolution.
        transposed: stored (d_in, d_out), as some GPT-2 ports do.
        aliases: every name that the tensor goes by.
        modules: its owners and their ancestors below the root.
    """

    name: str
    parameter: Tensor
    role: str
    action: str = "keep"
    block: str = ""
    rows: tuple[int, int] | None = None
    kind: str = "matrix"
    groups: int = 1
    transposed: bool = False
    aliases: tuple[str, ...] = ()
    modules: tuple[nn.Module, ...] = ()

    @property
    def label(self) -> str:
        """The name, with the block: `h.0.attn.c_attn.weight[q]`."""
        return f"{self.name}[{self.block}]" if self.block else self.name

    def view(self, weight: Tensor) -> Tensor:
        """The matrices of `weight` (a tensor of this parameter's full shape), as a view that can be written to.

        Args:
            weight: the parameter or a tensor of its shape; any memory format.

        Returns:
            (..., d_out, d_in); for a convolution (groups, *kernel, c_out / groups, c_in / groups).

        Raises:
            ValueError: for a vector, which holds no matrix.
        """
        if self.kind == "vector":
            raise ValueError(f"{self.label}: a vector holds no matrix to project")
        if self.kind == "conv":  # (c_out, c_in/g, *kernel)
            return self._grouped(weight).movedim((1, 2), (-2, -1))
        if self.kind == "conv_transpose":  # (c_in, c_out/g, *kernel)
            return self._grouped(weight).movedim((2, 1), (-2, -1))
        matrix = weight.mT if self.transposed else weight
        return matrix if self.rows is None else matrix[..., self.rows[0] : self.rows[1], :]

    def _grouped(self, weight: Tensor) -> Tensor:
        """(g * a, b, ...) -> (g, a, b, ...), as a view whatever the memory format."""
        return torch.unflatten(weight, 0, (self.groups, -1))

    @property
    def shape(self) -> tuple[int, int]:
        """(d_out, d_in) of one matrix."""
        view = self.view(_meta(self.parameter))
        return view.shape[-2], view.shape[-1]

    @property
    def count(self) -> int:
        """How many matrices the entry holds."""
        return math.prod(self.view(_meta(self.parameter)).shape[:-2])

    @property
    def positions(self) -> int:
        """Kernel positions k_h * k_w of a convolution, 1 for anything else."""
        return self.count // self.groups if self.kind.startswith("conv") else 1


def resolve(
    model: nn.Module,
    layout: Layout = "all",
    include: Iterable[Selector] = (),
    exclude: Iterable[Selector] = (),
    blocks: Mapping[str, Sequence[int]] | None = None,
    transposed: Iterable[str] = (),
) -> list[Entry]:
    """Give every parameter of a model its matrices and its action.

    A selector is a pattern (`"*.mlp.*"`, matched against the parameter's names and the names of the modules around it,
    so that `"head"` means all below `head`), a module type, a module, or a parameter.

    Args:
        model: any module; DDP and `torch.compile` wrappers are looked through.
        layout: a preset of `PRESETS`; a mapping from a word of `GROUPS` or a pattern to an action, later ones win;
            or entries made by an earlier call, taken as they are.
        include: selectors of weights to project beside the layout's.
        exclude: selectors of weights to keep whatever the layout says.
        blocks: heights of the row blocks of fused weights, by pattern: `{"*.attn.proj_in.weight": (64, 16, 16)}`.
        transposed: patterns of weights that are stored (d_in, d_out).

    Returns:
        All entries in the order of `named_parameters()`, those that are kept too.

    Raises:
        ValueError: an unknown preset or action, a selector that matches nothing, a fused weight that cannot be cut.
    """
    if not isinstance(layout, (str, Mapping)):
        return list(layout)
    rules = _rules(layout)
    entries = _describe(unwrap(model), dict(blocks or {}), tuple(transposed))
    for selector, action in rules.items():
        entries = _apply(entries, selector, action, optional=selector in GROUPS)
    for chosen in include:
        entries = _apply(entries, chosen, "project")
    for chosen in exclude:
        entries = _apply(entries, chosen, "keep")
    return entries


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
    return name.removeprefix("module.")


# ----------------------------------------------------------------------------------------------- actions and selectors


def _rules(layout: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(layout, str):
        if layout not in PRESETS:
            raise ValueError(f"layout={layout!r}: unknown; choose one of {', '.join(PRESETS)}, or give a mapping")
        return PRESETS[layout]
    for selector, action in layout.items():
        if action not in ACTIONS:
            raise ValueError(f"layout[{selector!r}]={action!r}: unknown action; choose one of {', '.join(ACTIONS)}")
    return dict(layout)


def _apply(entries: list[Entry], selector: Selector, action: str, optional: bool = False) -> list[Entry]:
    """Entries with `action` where `selector` matches; vectors cannot be projected and stay as they are."""
    matched = [_matches(entry, selector) for entry in entries]
    usable = [hit and not (action == "project" and e.kind == "vector") for hit, e in zip(matched, entries, strict=True)]
    if not optional and not any(usable):
        if any(matched):
            raise ValueError(f"{selector!r} matches only biases and scales, which hold no matrix to project")
        near = difflib.get_close_matches(str(selector), [entry.name for entry in entries], n=3, cutoff=0.3)
        raise ValueError(f"no parameter matches {selector!r}" + (f"; near it: {', '.join(near)}" if near else ""))
    return [replace(e, action=action) if hit else e for hit, e in zip(usable, entries, strict=True)]


def _matches(entry: Entry, selector: Selector) -> bool:
    if isinstance(selector, str):
        if selector in GROUPS:
            return entry.role in GROUPS[selector]
        return selector == entry.label or any(fnmatchcase(name, selector) for name in _prefixes(entry.aliases))
    if isinstance(selector, type):
        return any(isinstance(module, selector) for module in entry.modules)
    if isinstance(selector, nn.Module):
        return any(module is selector for module in entry.modules)
    return entry.parameter is selector


def _prefixes(names: Iterable[str]) -> Iterable[str]:
    """`a.b.weight` -> a, a.b, a.b.weight."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


# ------------------------------------------------------------------------------------------ from model to entries


@dataclass(frozen=True)
class _Use:
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
        if not isinstance(self.owner, (nn.Linear, _ConvNd)) and not _is_transposed_linear(self.owner):
            return self.attribute, self.owner  # a raw parameter, as in nn.MultiheadAttention
        parts, level = self.name.split(".")[:-1], len(self.path) - 1
        while level > 1 and isinstance(self.path[level - 1], nn.Sequential):
            level -= 1
        return (parts[level - 1], self.path[level - 1]) if level else ("", self.owner)


def _describe(model: nn.Module, blocks: dict[str, Sequence[int]], transposed: tuple[str, ...]) -> list[Entry]:
    uses: dict[int, list[_Use]] = {}
    parameters: dict[int, Tensor] = {}
    for name, path in _walk(model):
        for attribute, parameter in path[-1]._parameters.items():
            if parameter is None:
                continue
            if isinstance(parameter, UninitializedParameter):
                raise ValueError(f"{name}.{attribute} has no shape yet: run the lazy model once first")
            parameters[id(parameter)] = parameter
            full = f"{name}.{attribute}" if name else attribute
            uses.setdefault(id(parameter), []).append(_Use(full, path, attribute))
    _check_patterns((*blocks, *transposed), [use for places in uses.values() for use in places])
    entries: list[Entry] = []
    for key, places in uses.items():
        entries += _entries(parameters[key], places, blocks, transposed)
    return entries


def _walk(model: nn.Module) -> Iterable[tuple[str, tuple[nn.Module, ...]]]:
    """Every module with its name and its ancestors, in the order of `named_modules`, shared modules again."""
    stack: list[tuple[str, tuple[nn.Module, ...]]] = [("", (model,))]
    while stack:
        name, path = stack.pop()
        yield name, path
        named = [(key, unwrap(child)) for key, child in path[-1]._modules.items() if child is not None]
        children = [(f"{name}.{key}" if name else key, (*path, child)) for key, child in named]
        stack.extend(reversed(children))


def _check_patterns(patterns: Iterable[str], uses: list[_Use]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(use.name, pattern) for use in uses):
            raise ValueError(f"no parameter matches {pattern!r}")


def _entries(
    parameter: Tensor, uses: list[_Use], blocks: dict[str, Sequence[int]], transposed: tuple[str, ...]
) -> list[Entry]:
    """The entries of one parameter: several when its rows are fused projections."""
    # A table that is also the head's weight is a head: the linear module says how it is multiplied.
    use = next((use for use in uses if isinstance(use.owner, (nn.Linear, _ConvNd))), uses[0])
    aliases = tuple(dict.fromkeys(u.name for u in uses))
    modules = tuple({id(m): m for u in uses for m in u.path[1:]}.values())
    role = _role(use, len({id(u.owner) for u in uses}) > 1)
    entry = Entry(uses[0].name, parameter, role, kind=_kind(use, parameter), aliases=aliases, modules=modules)
    if isinstance(use.owner, _ConvNd):
        return [replace(entry, groups=use.owner.groups)]
    if _is_transposed_linear(use.owner) or any(fnmatchcase(u.name, p) for u in uses for p in transposed):
        entry = replace(entry, transposed=parameter.ndim > 1)
    d_out = parameter.shape[-1 if entry.transposed or parameter.ndim == 1 else -2] if parameter.ndim else 1
    declared = next(
        (sizes for pattern, sizes in blocks.items() if any(fnmatchcase(u.name, pattern) for u in uses)), None
    )
    cut = _declared_blocks(entry.name, role, d_out, declared) if declared else _fused_blocks(use, d_out, role)
    if len(cut) == 1:
        return [entry]
    starts = [sum(height for _, _, height in cut[:i]) for i in range(len(cut))]
    return [
        replace(entry, block=block, role=part, rows=(start, start + height))
        for start, (block, part, height) in zip(starts, cut, strict=True)
    ]


def _kind(use: _Use, parameter: Tensor) -> str:
    if parameter.ndim < 2:
        return "vector"
    if isinstance(use.owner, _ConvTransposeNd):
        return "conv_transpose"
    if isinstance(use.owner, _ConvNd):
        return "conv"
    return "matrix" if parameter.ndim in (2, 3) else "vector"


def _is_transposed_linear(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and not isinstance(module, _ConvNd)  # GPT-2 in transformers


def _role(use: _Use, tied: bool) -> str:
    owner = use.owner
    if isinstance(owner, _ConvNd):
        return "depthwise" if owner.groups > 1 and owner.groups == owner.in_channels else "conv"
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    leaf, holder = use.place
    dense = isinstance(owner, nn.Linear) or _is_transposed_linear(owner)
    if not dense:
        fused = isinstance(owner, nn.MultiheadAttention) and leaf.startswith("in_proj")
        return "q" if leaf in _Q or fused else "k" if leaf in _K else "v" if leaf in _V else "other"
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
    return sum(isinstance(child, nn.Linear) or _is_transposed_linear(child) for child in children)


# ------------------------------------------------------------------------------------------ fused projections


def _declared_blocks(name: str, role: str, d_out: int, heights: Sequence[int]) -> list[tuple[str, str, int]]:
    if sum(heights) != d_out:
        raise ValueError(
            f"blocks of {name}: heights {tuple(heights)} add up to {sum(heights)}, not to its {d_out} rows"
        )
    if role in ("q", "k", "v") and len(heights) == 3:
        return [(part, part, height) for part, height in zip("qkv", heights, strict=True)]
    return [(str(i), role, height) for i, height in enumerate(heights)]


def _fused_blocks(use: _Use, d_out: int, role: str) -> list[tuple[str, str, int]]:
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


def _head_widths(use: _Use, holder: nn.Module, d_out: int) -> tuple[int, int]:
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


def _meta(parameter: Tensor) -> Tensor:
    """A tensor with the parameter's (global) shape and no memory."""
    return torch.empty(parameter.shape, device="meta")
