"""What a model's weights are: each parameter as an entry, or as one for each block of a fused weight.

How a weight is cut is asked of these in turn, and the first that answers wins:

1. the caller: `blocks` and `transposed`; or the model, whose modules may declare theirs in a method `matrix_blocks()`;
2. the rules of `known`;
3. a forward pass: the model's own on an `example`; where a weight looks fused, its module's alone on random input;
4. nobody: it is kept, and its reason says why it looks fused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import heads, topology
from fire_core.weights.entry import Entry
from fire_core.weights.fused import Cut, Declared, Misfit, declared
from fire_core.weights.known import known_cut
from fire_core.weights.read import read_cuts, read_module
from fire_core.weights.topology import Use, linear_layers, unwrap, width

LAYERS = ("q", "k", "v", "attention_out", "mlp", "ssm", "recurrent", "head", "dense", "conv")  # roles that can be cut
# Names that say "several projections in one".
_SAYS_FUSED = re.compile(
    r"qkv|kqv|qvk|query_key_value|key_value|c_attn|att_proj|gate_up|up_gate|gate_and_up|(^|_)(kv|qk|w12|w13|xz|zx|xBC)(_|$)"
    r"|^Wi$|fused|zxbc"
)
_SEPARATE = re.compile(r"(to_|w|w_|c_)?[qkv](_|$)|query|key|value")
_GATED = re.compile(r"GLU|Glu([A-Z]|$)|Gated(MLP|Mlp|Linear|FFN|FeedForward)")


def near(pattern: str, names: Iterable[str]) -> str:
    """The names that a mistaken pattern may mean, as the end of a message."""
    similar = difflib.get_close_matches(pattern, list(names), n=3, cutoff=0.3)
    return f"; near it: {', '.join(similar)}" if similar else ""


class Reader:
    """Tells what the weights of a model are.

    Args:
        model: any module; wrappers are looked through.
        blocks: declared by the caller, by pattern; see `layout.resolve`.
        transposed: patterns of weights that are stored (d_in, d_out).
        example: input for one forward pass off which cuts are read; None for no pass.
        by_head: cut attention by head too.

    Raises:
        ValueError: a pattern that matches nothing, an example that the model does not take.
    """

    def __init__(
        self, model: nn.Module, blocks: Mapping[str, Declared], transposed: list[str], example: Any, by_head: bool
    ) -> None:
        root = unwrap(model)
        self.blocks, self.transposed, self.by_head = blocks, transposed, by_head
        self.seen = {} if example is None else read_cuts(model, example)
        self.uses = topology.uses_of(root)
        names = list(dict.fromkeys(use.name for _, uses in self.uses for use in uses))
        for option, pattern in (*(("blocks", p) for p in blocks), *(("transposed", p) for p in transposed)):
            if not any(fnmatchcase(name, pattern) for name in names):
                hint = near(pattern, names) or f"; the first are {', '.join(names[:3])}"
                raise ValueError(f"{option}: no parameter matches {pattern!r}{hint}")
        self.by_model: dict[str, Declared] = {}  # what the modules declare; of two, the outer one's
        for name, module in root.named_modules():
            if declare := getattr(module, "matrix_blocks", None):
                prefix = topology.clean_name(f"{name}." if name else "")
                self.by_model = {prefix + key: heights for key, heights in declare().items()} | self.by_model
        self._alone: dict[object, Cut | None] = {}

    def read(self) -> list[Entry]:
        """All entries of the model in the order of `named_parameters()`, none with an action yet.

        Raises:
            ValueError: blocks that do not fit.
        """
        return [entry for parameter, uses in self.uses for entry in self.entries(parameter, uses)]

    def entries(self, parameter: Tensor, uses: list[Use]) -> list[Entry]:
        """One parameter's entries: several when its rows are fused projections."""
        use = next((use for use in uses if not use.is_raw), uses[0])  # the linear module says how it is multiplied
        kind, role, reason = topology.standing_of(use, parameter, len({id(u.owner) for u in uses}) > 1)
        entry = Entry(
            uses[0].name,
            parameter,
            role,
            kind=kind,
            aliases=tuple(dict.fromkeys(u.name for u in uses)),
            modules=tuple({id(m): m for u in uses for m in u.path[1:]}.values()),
            reason=reason,
        )
        names = [*(u.name for u in uses), *(u.weight_name for u in uses)]  # a bias goes with its layer's weight
        matching = (heights for name in names for pattern, heights in self.blocks.items() if fnmatchcase(name, pattern))
        heights = next(matching, None)
        flipped = any(fnmatchcase(u.name, pattern) for u in uses for pattern in self.transposed)
        _check_declared(entry, use, heights is not None, flipped)
        if kind == "locked":
            return [entry]
        if kind.startswith("conv") and isinstance(use.owner, _ConvNd):
            entry = replace(entry, groups=use.owner.groups)
        elif topology.is_transposed_linear(use.owner) or flipped:
            entry = replace(entry, transposed=parameter.ndim > 1)
        if heights is None:
            heights = next((self.by_model[name] for name in names if name in self.by_model), None)
        if heights is not None:
            parts = _split(entry, declared(entry.name, entry.d_out, heights, role in ("q", "k", "v")))
        else:
            cut, doubt = self._cut(entry, use)
            if doubt and kind != "vector":
                entry = replace(entry, role="fused", reason=f"looks fused: {doubt}")
            parts = [entry] if cut is None else _split(entry, cut, raw=use.is_raw)
        return [heads.by_head(part, use) for part in parts] if self.by_head else parts

    def _cut(self, entry: Entry, use: Use) -> tuple[Cut | None, str]:
        """How a parameter is cut, or why it looks cut; neither for one matrix."""
        parameter, rows, doubt = entry.parameter, entry.d_out, ""
        try:
            if (known := known_cut(use, parameter, rows)) is not None:
                return known, ""
        except Misfit as misfit:
            doubt = str(misfit)
        layer = entry.kind in ("matrix", "conv") and entry.role in LAYERS
        bias = parameter.ndim == 1 and not use.is_raw
        if layer or bias or use.is_raw:
            seen = self.seen.get(id(parameter if use.is_raw or layer else use.owner.weight))
            if seen is not None and (use.is_raw or seen.rows == rows):
                return seen, ""
        if layer or bias:
            doubt = doubt or doubt_of(use, rows)
        alone = self._read_alone(use) if doubt and not use.is_raw else None
        return (alone, "") if alone is not None and alone.rows == rows else (None, doubt)

    def _read_alone(self, use: Use) -> Cut | None:
        """The cut read off the module alone, once for all that are built alike."""
        leaf, holder = use.place
        weight: Any = use.owner.weight
        plain = sorted((k, v) for k, v in vars(holder).items() if isinstance(v, (bool, int, str)) and k != "training")
        key = (type(holder), leaf, weight.shape, tuple((k, repr(v)) for k, v in plain))
        if key not in self._alone:
            self._alone[key] = read_module(holder, use.owner)
        return self._alone[key]


def _split(entry: Entry, cut: Cut, raw: bool = False) -> list[Entry]:
    """The blocks of a weight, each with its role; a raw parameter that a rule knows is a layer's weight like others."""
    if raw and entry.kind == "matrix":
        role = entry.role if entry.role != "other" else cut.role or "other"
        reason = entry.reason if role in ("other", "router") else ""
        entry = replace(entry, transposed=cut.transposed, groups=cut.groups, role=role, reason=reason)
    if len(cut.blocks) == 1:
        return [entry]
    attention = entry.role in ("q", "k", "v", "attention_out") or {"q", "k"} & {name for name, _ in cut.blocks}
    parts, start = [], 0
    for name, height in cut.blocks:
        role = entry.role
        if attention and role not in ("ssm", "other"):
            role = name if name in ("q", "k", "v") else "attention_out"
        rows = (start, start + height)
        parts.append(replace(entry, block=name, role=role, rows=rows, repeats=cut.repeats))
        start += height
    return parts


def _check_declared(entry: Entry, use: Use, cut: bool, flipped: bool) -> None:
    """Refuse what could only be ignored."""
    option = "blocks" if cut else "transposed"
    if (cut or flipped) and entry.kind == "locked":
        raise ValueError(f"{option}: cannot cut {entry.name}: {entry.reason}")
    if flipped and isinstance(use.owner, _ConvNd) and entry.kind != "vector":
        raise ValueError(f"transposed: {entry.name} is a convolution's; its layout is known")
    if cut and (entry.kind == "conv_transpose" or (isinstance(use.owner, _ConvNd) and use.owner.groups > 1)):
        raise ValueError(f"blocks: {entry.name} is a grouped or transposed convolution's and cannot be cut in rows")


def doubt_of(use: Use, rows: int) -> str:
    """Why a layer that no rule knows looks as if it were several; empty if it does not."""
    owner, (leaf, holder) = use.owner, use.place
    names = use.name.split(".")[-3:-1]
    if sum(isinstance(module, (nn.Linear, _ConvNd)) for module in holder.modules()) > 1 or names[-1:] != [leaf]:
        names = [leaf]  # else a wrapper of one layer, whose own name tells as well
    if told := [name for name in names if _SAYS_FUSED.search(name)]:
        return f"its name, {told[0]}, says so"
    if isinstance(owner, _ConvNd):
        glu = any(isinstance(child, nn.GLU) for child in holder.children())
        return "its module holds a GLU" if glu and rows == 2 * owner.in_channels else ""
    if any("A_log" in module._parameters for module in use.path[-3:]) and leaf in ("in_proj", "x_proj"):
        return "it feeds a state-space mixer"
    layers, inputs = list(linear_layers(holder)), width(owner)
    if inputs == rows or any(width(layer) == rows for layer in layers if layer is not owner):
        return ""  # somebody takes all the rows at once
    if leaf == "in_proj" and rows > inputs:
        return f"its name, {leaf}, says so"
    last = len(layers) > 1 and layers[-1] is owner
    if _GATED.search(type(holder).__name__) and rows % 2 == 0 and not last:
        return f"it sits in {type(holder).__name__}"
    if isinstance(holder, (nn.Sequential, nn.ModuleDict, nn.ModuleList)) or leaf.endswith(("_a_proj", "_b_proj")):
        return ""
    for other in layers[1 + next((i for i, layer in enumerate(layers) if layer is owner), len(layers)) :]:
        for parts in (2,) if _SEPARATE.match(leaf) else (2, 3):
            if rows == parts * width(other) and (parts == 3 or width(other) != inputs):
                return f"its {rows} rows are {parts} times what the layer beside it takes"
    return ""
